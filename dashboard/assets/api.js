// Requests to the server. Errors become a Problem, with the message from Postgres.

export class Problem extends Error {
  constructor(status, said) {
    super(said.message);
    Object.assign(this, { status, ...said });
  }
}

const LIMIT = 8000;
let session = { process: null, key: "", actions: false, hide_payloads: false, user: null };

// Whether the session is that of the process that answered.
export const knows = (process) => session.process === process;
export const may = () => session.actions;
export const hidden = () => session.hide_payloads;
export const user = () => session.user;
export const setToken = (token) => sessionStorage.setItem("token", token);

async function call(path, options = {}) {
  const headers = { ...options.headers };
  const token = sessionStorage.getItem("token");
  if (token) headers.authorization = `Bearer ${token}`;
  let response, said;
  try {
    const signal = AbortSignal.timeout(options.limit || LIMIT);
    response = await fetch(path, { ...options, headers, signal, credentials: "omit" });
    said = await response.json();
  } catch {
    throw new Problem(0, { message: "queue dashboard does not answer", unreachable: true });
  }
  if (!response.ok) throw new Problem(response.status, said.problem);
  return said;
}

export async function openSession() {
  session = await call("/api/session");
}

export function get(path, parameters = {}) {
  const asked = Object.entries(parameters).filter(([, value]) => value);
  const query = asked.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  return call(`/api/${path}${query ? `?${query}` : ""}`);
}

export function act(wish) {
  return call("/api/act", {
    method: "POST",
    // Longer than the server waits for Postgres, so that the page gets the server's own answer.
    limit: 150000,
    headers: { "content-type": "application/json", "x-queue-key": session.key },
    body: JSON.stringify(wish),
  });
}
