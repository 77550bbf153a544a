// The actions of the buttons: ask for confirmation if an action cannot easily be undone, show the result, and refresh.

import { children, h } from "./dom.js";
import { act, Problem } from "./api.js";
import { count } from "./format.js";

// title and text: the confirmation; done: the message afterwards.
const ACTIONS = {
  pause: {
    title: (name) => `Pause ${name}?`,
    text: "No task is claimed from it until it is resumed. Running tasks finish, and tasks can be pushed.",
    verb: "Pause", done: (name) => `${name} is paused`,
  },
  resume: { done: (name) => `${name} is resumed` },
  cancel: {
    title: (id) => `Cancel task ${id}?`,
    text: "The worker of a running task is asked to stop, and may still complete it. A cancelled task cannot be restored.",
    verb: "Cancel the task", danger: true,
    done: (id, state) => (state === "cancelled" ? `Task ${id} is cancelled` : `The worker of task ${id} is asked to stop`),
  },
  retry: { done: (id) => `Task ${id} is back in its queue` },
  redrive: {
    title: (name) => `Redrive ${name}?`,
    text: "Its dead letters go back into the queue, the oldest first. They are due at once, and their attempts start again from 0.",
    verb: "Redrive", number: "How many at most",
    done: (name, n) => (n === "1" ? `1 task is back in ${name}` : `${count(Number(n))} tasks are back in ${name}`),
  },
  run_schedule: {
    title: (name) => `Run ${name} now?`, text: "It pushes one task at once. The next run stays the same.",
    verb: "Run now", done: (name, id) => `${name} pushed task ${id}`,
  },
  pause_schedule: {
    title: (name) => `Pause the schedule ${name}?`, text: "Runs during the pause are skipped.",
    verb: "Pause", done: (name) => `The schedule ${name} is paused`,
  },
  resume_schedule: { done: (name) => `The schedule ${name} is resumed` },
};
const MOST = 100000;

// Resolves to the action, or to nothing if it was cancelled.
function ask(action, target, offered) {
  const { title, text, verb, danger, number } = ACTIONS[action];
  if (!title) return Promise.resolve({ action, target });
  const dialog = document.getElementById("dialog");
  const field = number && h("input", {
    id: "tasks", type: "number", min: 1, max: MOST, required: true, value: Math.max(1, Math.min(MOST, Number(offered) || 1000)),
  });
  const form = h("form", { method: "dialog" },
    h("h2", { id: "dialog-title" }, title(target)), h("p", {}, text),
    field ? h("p", { class: "field" }, h("label", { for: "tasks" }, number), field) : null,
    h("div", { class: "buttons" },
      h("button", { type: "button", class: "button", value: "no" }, "Leave it"),
      h("button", { class: `button ${danger ? "danger" : "primary"}`, value: "yes" }, verb)));
  dialog.replaceChildren(form);
  return new Promise((resolve) => {
    const end = (wish) => { dialog.close(); resolve(wish); };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      end({ action, target, ...(field ? { tasks: field.valueAsNumber } : {}) });
    });
    form.querySelector("[value=no]").addEventListener("click", () => end(null));
    dialog.oncancel = () => resolve(null);
    dialog.showModal();
    (field || form.querySelector("[value=yes]")).focus();
  });
}

function note(kind, ...content) {
  const close = h("button", { type: "button", class: "close", "aria-label": "Dismiss" }, "×");
  const element = h("div", { class: `note ${kind}` }, h("div", {}, content), close);
  close.addEventListener("click", () => element.remove());
  children(document.getElementById("notes"), []);
  document.getElementById("notes").append(element);
  if (kind === "good") setTimeout(() => element.remove(), 8000);
}

async function perform(button, again) {
  const { action, target, offered } = button.dataset;
  const wish = await ask(action, target, offered);
  if (!wish) return;
  button.disabled = true;
  try {
    const { result } = await act(wish);
    note("good", ACTIONS[action].done(target, result));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    note("wrong", h("p", {}, error.sqlstate ? h("code", { class: "sqlstate" }, error.sqlstate) : null, error.message),
      error.detail ? h("p", {}, error.detail) : null, error.hint ? h("p", { class: "hint" }, error.hint) : null);
  } finally {
    button.disabled = false;
  }
  await again();
}

export function listen(again) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-action]");
    if (button && !button.disabled) perform(button, again);
  });
}
