// Bulk actions: on all tasks that a list's filter matches, or on the selected ones. The server counts them first. Then
// the page asks, and has them changed batch by batch until it is stopped.

import { children, h } from "./dom.js";
import { act, get, may, Problem } from "./api.js";
import { problem } from "./parts.js";
import { count } from "./format.js";
import { filterOf, words } from "./filter.js";
import { caught, field, note, open } from "./forms.js";

const LIVE = ["live", "queued", "scheduled", "waiting", "running"];
// states: the lists that it changes as a whole. If tasks of several states are selected, each action skips the others.
const ACTIONS = {
  run_now_where: { label: "Run now", done: "made due", states: ["scheduled"], text: "They become due at once. Their attempts continue to count." },
  redrive_where: { label: "Redrive", done: "back in their queue", states: ["failed"], queue: "Into the queue", text: "They are due at once, and their attempts start again from 0. A task whose key is taken stays where it is." },
  reprioritise_where: { label: "Reprioritise", done: "given the priority", states: LIVE, priority: true, text: "The smallest priority is claimed first. A running task gets it when it returns to its queue." },
  move_where: { label: "Move", done: "moved", states: ["queued", "scheduled", "waiting"], queue: "To the queue", needed: true, text: "They keep their ids, priorities, times and keys. A task whose key is taken there stays where it is." },
  cancel_where: { label: "Cancel", done: "cancelled or asked to stop", states: LIVE, danger: true, text: "The workers of running tasks are asked to stop, and may still complete them. A cancelled task cannot be restored." },
  purge_where: { label: "Purge", done: "deleted", states: ["queued", "scheduled", "waiting", "failed"], danger: true, text: "They are deleted, and do not appear in the history." },
};
const ENDED = ["completed", "cancelled"];

// The selected tasks, of the list at one address.
const chosen = new Set();
let chosenAt = null;
let last = null; // what the bar shows

export const pick = (task) => (may() && !ENDED.includes(task.state)
  ? h("input", { type: "checkbox", class: "pick", "data-pick": task.id, "aria-label": `Select task ${task.id}` }) : null);

// Also if none of the tasks that were searched so far matches: the action searches all.
export function bar(parameters, { tasks, looked }) {
  if (!may() || (!tasks.length && !looked) || ENDED.includes(parameters.state)) return null;
  if (chosenAt !== location.hash) { chosen.clear(); chosenAt = location.hash; }
  const ids = tasks.filter((task) => !ENDED.includes(task.state)).map((task) => task.id);
  for (const id of chosen) if (!ids.includes(id)) chosen.delete(id);
  last = { filter: filterOf(parameters), ids, failed: new Set(tasks.filter(({ state }) => state === "failed").map(({ id }) => id)) };
  return h("div", { class: "bulk", role: "toolbar", "aria-label": "Bulk actions" }, controls());
}

// Why the filter of this list cannot be that of an action.
function unfit(filter) {
  if (filter.text) return "A bulk action cannot search text: filter by other fields, or select tasks.";
  if (filter.ended_from || filter.ended_to) return "A bulk action cannot filter by the end: select tasks.";
  if (!Object.values(ACTIONS).some(({ states }) => states.includes(filter.state))) return "Choose a state for actions on all tasks, or select some.";
  return null;
}

function controls() {
  const { filter, ids } = last;
  const several = !filter.state || filter.state === "blocked" || filter.state === "live";
  const why = unfit(filter);
  const fits = ({ states, label }) => (chosen.size
    ? several ? filter.state === "" || !filter.state || label !== "Redrive" : states.includes(filter.state)
    : !why && states.includes(filter.state));
  return [
    ids.length > 0 && h("button", { type: "button", class: "button", "data-pick-all": true, "aria-pressed": String(chosen.size === ids.length) },
      chosen.size ? "Select none" : `Select these ${ids.length}`),
    Object.entries(ACTIONS).filter(([, action]) => fits(action)).map(([name, { label, danger }]) => h("button", {
      type: "button", class: `button ${danger ? "danger" : ""}`, "data-bulk": name, "data-key": name,
    }, `${label}…`)),
    h("span", { class: "dim", "data-key": "scope" }, chosen.size ? `the ${count(chosen.size)} selected` : why || "all that match"),
  ];
}

const refresh = () => document.querySelectorAll(".bulk").forEach((element) => children(element, controls()));

function choose(ids) {
  chosen.clear();
  ids.forEach((id) => chosen.add(id));
  document.querySelectorAll("[data-pick]").forEach((box) => { box.checked = chosen.has(box.dataset.pick); });
  refresh();
}

// Meanwhile somebody else may redrive a selected dead letter. It keeps its id, and must not be purged as a live task.
function stateOf(ids) {
  const failed = ids.filter((id) => last.failed.has(id)).length;
  return failed === 0 ? "live" : failed === ids.length ? "failed" : null;
}

// Asks in the dialog, with the number of tasks that the server counts.
async function ask(name, again) {
  const action = ACTIONS[name];
  const queues = action.queue ? ((await get("overview")).queues.value?.queues || []).map((row) => row.queue) : [];
  const what = chosen.size ? { ids: [...chosen], state: stateOf([...chosen]) } : { filter: last.filter };
  const said = what.ids ? [["tasks", what.ids.length > 8 ? `${what.ids.length} selected` : what.ids.join(", ")]] : words(what.filter);
  const counted = h("div", { class: "counted", role: "status" });
  const leave = h("button", { type: "button", class: "button", value: "no" }, "Leave it");
  const go = h("button", { class: `button ${action.danger ? "danger" : "primary"}`, value: "yes", disabled: true }, action.label);
  const form = h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, `${action.label} tasks?`),
    h("dl", { class: "facts said" }, said.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)))),
    h("p", {}, action.text),
    action.priority ? field("priority", "New priority", "", { inputmode: "numeric", required: true }) : null,
    action.queue ? field("to_queue", action.queue, "", {
      required: action.needed, options: [["", action.needed ? "choose…" : "of each task"], ...queues.map((queue) => [queue, queue])],
    }) : null,
    counted, h("div", { class: "buttons" }, leave, go));
  const state = { stopped: false, running: false };
  const close = open(form, { closed: () => { state.stopped = true; } });
  leave.addEventListener("click", close);
  let counting = 0;
  // What was counted is what is sent: it changes only with a new count.
  let wish = null;
  const recount = async () => {
    const mine = ++counting;
    go.disabled = true;
    const asked = { action: name, ...what, ...Object.fromEntries(new FormData(form)) };
    if (!form.checkValidity()) { children(counted, []); return; }
    children(counted, [h("p", { class: "dim" }, "Counting…")]);
    try {
      const { result } = await act({ ...asked, dry_run: true });
      if (mine !== counting) return;
      wish = { ...asked, ...result };
      children(counted, [h("p", {}, h("b", {}, count(result.tasks)), result.tasks === 1 ? " task matches." : " tasks match.")]);
      children(go, [`${action.label} ${count(result.tasks)}`]);
      go.disabled = result.tasks === 0;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (mine === counting) children(counted, [problem(error)]);
    }
  };
  form.addEventListener("input", recount);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (state.running || go.disabled) return;
    state.running = true;
    await run(action, wish, { form, counted, leave, go, close, state });
    choose([]);
    await again();
  });
  await recount();
}

async function run(action, { tasks: all, ...wish }, { form, counted, leave, go, close, state }) {
  let done = 0;
  let from = "0";
  form.querySelectorAll("input, select").forEach((element) => { element.disabled = true; });
  go.hidden = true;
  children(leave, ["Stop"]);
  const meter = h("progress", { max: all, value: 0 });
  const figure = h("span", {});
  const show = () => {
    meter.value = done;
    children(figure, [`${count(done)} of ${count(all)}`]);
  };
  children(counted, [meter, figure]);
  try {
    while (from !== null && !state.stopped) {
      show();
      const { result } = await act({ ...wish, from, at_most: all - done });
      done += result.tasks;
      from = result.next;
    }
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const content = [h("p", {}, `Stopped after ${count(done)} of ${count(all)}.`), problem(error)];
    // Without the dialog, nothing else would say how many tasks were changed.
    if (state.stopped) note("wrong", content);
    else children(counted, content);
    children(leave, ["Close"]);
    return;
  }
  const stopped = from !== null;
  if (!state.stopped) close();
  note(stopped ? "" : "good", stopped ? `Stopped: ${count(done)} of ${count(all)} tasks ${action.done}. The others are unchanged.`
    : `${count(done)} ${done === 1 ? "task" : "tasks"} ${action.done}`,
    !stopped && done < all ? `. ${count(all - done)} were locked, changed meanwhile, or have a key that is taken.` : null);
}

export function listen(again) {
  document.addEventListener("change", (event) => {
    const box = event.target.closest("[data-pick]");
    if (!box) return;
    if (box.checked) chosen.add(box.dataset.pick);
    else chosen.delete(box.dataset.pick);
    refresh();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-pick-all]")) choose(chosen.size ? [] : last.ids);
    const button = event.target.closest("[data-bulk]");
    if (button) ask(button.dataset.bulk, again).catch(caught);
  });
}
