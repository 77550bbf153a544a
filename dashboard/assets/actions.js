// The actions of the buttons: ask for confirmation if an action cannot easily be undone, show the result, and refresh.

import { h } from "./dom.js";
import { act } from "./api.js";
import { count } from "./format.js";
import { caught, note } from "./forms.js";
import * as bulk from "./bulk.js";
import * as push from "./push.js";
import * as schedule from "./schedule.js";

// The forms of the buttons that open one.
const FORMS = { push, schedule };

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
  run_now: { done: (id, n) => (n === "0" ? `Task ${id} is no longer scheduled` : `Task ${id} is due`) },
  reprioritise: {
    title: (id) => `Reprioritise task ${id}?`,
    text: "The smallest priority is claimed first. A running task gets it when it returns to its queue.",
    verb: "Reprioritise", number: "New priority", field: "priority", min: -2147483648, max: 2147483647,
    done: (id, n) => (n === "0" ? `Task ${id} had that priority, or has ended` : `Task ${id} has the new priority`),
  },
  redrive: {
    title: (name) => `Redrive ${name}?`,
    text: "Its dead letters go back into the queue, the oldest first. They are due at once, and their attempts start again from 0.",
    verb: "Redrive", number: "How many at most", field: "tasks", min: 1, max: 100000,
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
  unschedule: {
    title: (name) => `Delete the schedule ${name}?`, text: "Tasks that it has pushed stay.",
    verb: "Delete the schedule", danger: true, done: (name) => `The schedule ${name} is deleted`,
  },
  resume_schedule: { done: (name) => `The schedule ${name} is resumed` },
};

// Resolves to the action, or to nothing if it was cancelled.
function ask(action, target, offered) {
  const { title, text, verb, danger, number, field: name, min, max } = ACTIONS[action];
  if (!title) return Promise.resolve({ action, target });
  const dialog = document.getElementById("dialog");
  const field = number && h("input", {
    id: name, type: "number", min, max, required: true, value: Math.max(min, Math.min(max, Number(offered))),
  });
  const form = h("form", { method: "dialog" },
    h("h2", { id: "dialog-title" }, title(target)), h("p", {}, text),
    field ? h("p", { class: "field" }, h("label", { for: name }, number), field) : null,
    h("div", { class: "buttons" },
      h("button", { type: "button", class: "button", value: "no" }, "Leave it"),
      h("button", { class: `button ${danger ? "danger" : "primary"}`, value: "yes" }, verb)));
  dialog.classList.remove("wide");
  dialog.replaceChildren(form);
  return new Promise((resolve) => {
    const end = (wish) => { dialog.close(); resolve(wish); };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      end({ action, target, ...(field ? { [name]: field.valueAsNumber } : {}) });
    });
    form.querySelector("[value=no]").addEventListener("click", () => end(null));
    dialog.oncancel = () => resolve(null);
    dialog.showModal();
    (field || form.querySelector("[value=yes]")).focus();
  });
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
    caught(error);
  } finally {
    button.disabled = false;
  }
  await again();
}

export function listen(again) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-action]");
    if (button && !button.disabled) perform(button, again);
    const opener = event.target.closest("[data-form]");
    if (opener) FORMS[opener.dataset.form].open(opener.dataset.target, again).catch(caught);
  });
  bulk.listen(again);
}
