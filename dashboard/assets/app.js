// Shows the current page and refreshes it.

import { children, h, nodes } from "./dom.js";
import { get, knows, may, openSession, Problem, setToken, user } from "./api.js";
import { clock, count, now, setClock, span } from "./format.js";
import { heading, problem } from "./parts.js";
import { listen } from "./actions.js";
import { controls, paused } from "./controls.js";
import { keys } from "./keys.js";
import * as queues from "./pages/queues.js";
import * as queue from "./pages/queue.js";
import * as tasks from "./pages/tasks.js";
import * as task from "./pages/task.js";
import * as activity from "./pages/activity.js";
import * as failures from "./pages/failures.js";
import * as dead from "./pages/dead.js";
import * as schedules from "./pages/schedules.js";
import * as workers from "./pages/workers.js";
import * as health from "./pages/health.js";

const PAGES = { queues, queue, activity, tasks, task, dead, failures, schedules, workers, health };
const EVERY = 2000;
// A page whose answer took long is refreshed less often: requests take at most a twentieth of the time.
const SHARE = 20;
// The age of the numbers is shown if they are old, because they are expensive.
const OLD = 10;

const $ = (id) => document.getElementById(id);
let overview = null;
let shown = null; // the address of the page that is shown
let data = null; // the data of that page
let asker = null; // the address for which data was requested
let lost = null; // since when the data of the page is not refreshed, and why
let turn = 0; // the number of the last request

function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parameters = Object.fromEntries(query.split("&").filter(Boolean).map((pair) => {
    const [name, value = ""] = pair.split("=");
    try { return [name, decodeURIComponent(value)]; } catch { return [name, ""]; }
  }));
  // The parts of the overview that the page shows. The bar shows problems on every page.
  const parts = ["queues", "health", ...(["workers", "schedules"].includes(path) ? [path] : [])];
  return { page: PAGES[path] || queues, parts, parameters, address: location.hash };
}

async function look() {
  const mine = ++turn;
  const { page, parts, parameters, address } = route();
  const began = performance.now();
  let cost = 0; // how long Postgres worked for the page
  if (address !== shown) $("main").setAttribute("aria-busy", "true");
  try {
    const own = page.load ? page.load(parameters).catch((error) => error).then((answer) => {
      if (!answer.unreachable) cost = performance.now() - began;
      return answer;
    }) : null;
    const seen = await get("overview");
    const answer = await own;
    // Another process may have started to serve the page: it has another key, and perhaps other options.
    if (!knows(seen.process)) await openSession();
    if (mine === turn) take(seen, answer, address, parts);
  } catch (error) {
    if (error.status === 401) return login(Boolean(sessionStorage.getItem("token")));
    if (!(error instanceof Problem)) throw error;
    lost = { since: lost?.since ?? now(), problem: error };
  } finally {
    if (mine === turn) {
      const pause = Math.max(EVERY, cost * SHARE);
      setTimeout(() => mine === turn && !document.hidden && !paused() && look(), pause);
    }
  }
  if (mine === turn) show(page, parameters, address);
}

function take(seen, answer, address, parts) {
  overview = seen;
  // If a part fails, its last data stays. Without data, the page shows the problem in its place.
  const failed = parts.find((name) => seen[name].trouble && (name === "queues" || seen[name].value !== null));
  const kept = answer instanceof Problem && answer.unreachable && address === asker && !(data instanceof Problem);
  if (failed) {
    const { trouble } = seen[failed];
    lost = { since: now() - (seen.clock - trouble.since), problem: trouble.problem, part: failed };
  } else {
    lost = kept ? { since: lost?.since ?? now(), problem: answer } : null;
  }
  if (seen.queues.value) setClock(seen.queues.value.now + (seen.clock - seen.queues.at));
  if (answer instanceof Error && !(answer instanceof Problem)) throw answer;
  if (kept) return;
  data = answer;
  asker = address;
}

function show(page, parameters, address) {
  const main = $("main");
  main.dataset.shown = address; // for tests
  bar(page);
  const title = page.title(parameters);
  document.title = [title, overview?.queues.value?.database].filter(Boolean).join(" · ");
  if (!overview || asker !== address) {
    main.replaceChildren(...nodes([heading(title), problem(lost.problem)]));
    main.removeAttribute("aria-busy");
    shown = null;
    return;
  }
  const content = nodes([data instanceof Problem ? [heading(title), problem(data)] : page.render({ overview, data, parameters })]);
  if (address === shown) {
    const focused = document.activeElement;
    children(main, content);
    // A row that moved has lost the focus. If the element is gone, the keyboard stays in the page.
    if (document.activeElement !== focused) (focused.isConnected ? focused : main).focus({ preventScroll: true });
  } else {
    main.replaceChildren(...content);
    if (shown !== null) { scrollTo(0, 0); main.focus({ preventScroll: true }); }
    shown = address;
  }
  main.removeAttribute("aria-busy");
}

function bar(current) {
  const rows = overview?.queues.value?.queues || [];
  const dead = rows.reduce((sum, row) => sum + row.dead, 0);
  const troubles = (overview?.health.value || []).filter((check) => check.status !== "ok");
  const worst = troubles.some((check) => check.status === "critical") ? "critical" : "warning";
  const beside = {
    dead: dead ? h("span", { class: "pill bad" }, count(dead)) : null,
    health: troubles.length ? h("span", { class: `pill ${worst}` }, count(troubles.length))
      : overview?.health.trouble ? h("span", { class: "pill warning", title: "The checks cannot be shown" }, "?") : null,
  };
  const active = current.nav || current;
  children($("nav"), ["queues", "activity", "tasks", "dead", "failures", "schedules", "workers", "health"].map((name) =>
    h("a", { href: `#/${name}`, "aria-current": PAGES[name] === active || name === active ? "page" : null },
      PAGES[name].label, beside[name])));
  const about = overview?.queues.value;
  if (about) children($("where"), [h("b", {}, about.database), h("span", { class: "dim" }, ` as ${about.role}`, user() ? `, ${user()}` : null)]);
  const old = overview?.queues.at ? overview.clock - overview.queues.at : 0;
  const stale = Boolean(lost);
  const mode = may() ? h("span", { class: "mode acting" }, "actions on") : h("span", { class: "mode" }, "read-only");
  children($("live"), [mode, h("span", { class: stale ? "dot stale" : paused() ? "dot paused" : "dot" }),
    stale ? "stale" : paused() ? "paused" : old > OLD ? `${span(old)} old` : "live"]);
  document.body.classList.toggle("stale", stale);
  $("stale").hidden = !lost;
  if (lost) {
    const { problem: said, since, part } = lost;
    children($("stale"), [
      h("strong", {}, `${said.unreachable ? "No answer" : "Refused"} since ${clock(since)}. `),
      // Not announced by screen readers every two seconds.
      h("span", { "aria-hidden": "true" }, `For ${span(Math.max(1, Math.round(now() - since)))}. `),
      part && part !== "queues" ? `The page shows the last data of ${PAGES[part].label}. ` : "The page shows the last data. ", said.sqlstate ? h("code", { class: "sqlstate" }, said.sqlstate) : null,
      h("span", { class: "why" }, said.message), said.hint ? ` ${said.hint}` : null]);
  }
}

// Asks for the token, once in each tab, because there is no cookie.
function login(wrong) {
  turn += 1; // no other request until then
  const field = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true });
  const form = h("form", { class: "login" }, h("h1", {}, "Sign in"),
    h("p", { class: "dim" }, "Enter the token with which queue dashboard was started."),
    // For password managers, which file a password under a user name.
    h("input", { autocomplete: "username", value: "queue dashboard", hidden: true }),
    h("label", { for: "token" }, "Token"), field,
    wrong ? h("p", { class: "bad", role: "alert" }, "Wrong token.") : null,
    h("button", { class: "button primary" }, "Sign in"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(field.value.trim());
    look();
  });
  shown = null;
  $("main").replaceChildren(form);
  $("main").removeAttribute("aria-busy");
  field.focus();
}

addEventListener("hashchange", look);
document.addEventListener("visibilitychange", () => document.hidden || paused() || look());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the address of the page
  $("main").focus();
});
document.addEventListener("submit", (event) => {
  const search = event.target.closest("form[data-search]");
  if (!search) return;
  event.preventDefault();
  tasks.search(search);
});
listen(look);
keys(controls(look));
look();
