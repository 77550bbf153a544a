// Tasks by state, and the search. Every list is bounded, and shows how far it has searched.

import { h } from "../dom.js";
import { get, hidden } from "../api.js";
import { address, badge, dim, empty, heading, lease, link, named, queueLink, table, taskLink, when } from "../parts.js";
import { count, now, span } from "../format.js";

export const label = "Tasks";
export const title = ({ state }) => (state ? `${state} tasks` : "Tasks");

const STATES = ["", "live", "queued", "scheduled", "running", "waiting", "blocked", "failed", "completed", "cancelled"];
const MEANING = { "": "all", live: "not finished" };

export const load = ({ state, queue, text, after }) => get("tasks", { state, queue, text, after });

// Opens the page for the values of the form.
export function search(form) {
  const { page, state } = form.dataset;
  const { queue, text } = Object.fromEntries(new FormData(form));
  location.hash = address(page, { state, queue, text: text.trim() });
}

export function form(overview, page, { state, queue, text }) {
  const queues = (overview.queues.value?.queues || []).map((row) => row.queue);
  if (queue && !queues.includes(queue)) queues.push(queue);
  return h("form", { "data-search": true, "data-keep": true, "data-page": page, "data-state": state || "", role: "search", class: "search" },
    h("input", {
      type: "search", name: "text", value: text || "", maxlength: 200, "aria-label": "Id, or text",
      placeholder: hidden() ? "Id, kind, key, group, worker or error" : "Id, kind, key, group, worker, error, or text in the payload",
    }),
    h("select", { name: "queue", "aria-label": "Queue" }, h("option", { value: "" }, "every queue"),
      queues.map((name) => h("option", { value: name, selected: name === queue }, name))),
    h("button", { class: "button" }, "Search"));
}

// A table of tasks, without columns that would have the same value in each row.
export function list(found, caption, { without = [], act = null } = {}) {
  const columns = [
    ["Task", (task) => taskLink(task.id), "main"],
    ["State", (task) => badge(task.state)],
    ["Queue", (task) => queueLink(task.queue)],
    ["When", moment, "short"],
    ["Attempt", attempts, "number"],
    ["Kind, key or group", words],
    ["Worker", (task) => (task.worker ? named(task.worker) : dim())],
    ["Last error", (task) => (task.error ? h("span", { class: "error", title: task.error }, task.error) : dim()), "wide"],
  ].filter(([name]) => !without.includes(name));
  if (act) columns.push([".Actions", act, "act"]);
  return table(caption, columns, found.tasks, (task) => task.id);
}

function attempts(task) {
  const most = task.max_attempts ?? "?";
  return task.attempt ? h("span", {}, `${task.attempt} of ${most}`) : h("span", { class: "dim" }, `0 of ${most}`);
}

function words(task) {
  const both = [task.kind && named(task.kind, "kind"), task.key && named(task.key), task.group && named(task.group, "grouped")].filter(Boolean);
  return both.length ? both : dim();
}

function moment(task) {
  switch (task.state) {
    case "running": return h("span", {}, "for ", h("span", {}, span(now() - task.claimed)), h("span", { class: "dim" }, ", lease "), lease(task.lease));
    case "scheduled": return when(task.run_at);
    case "queued": return h("span", {}, "due ", when(task.run_at));
    case "completed": case "cancelled": case "failed": return when(task.ended);
    default: return h("span", {}, "pushed ", when(task.created));
  }
}

// The line under a list: how much of all tasks it shows.
export function extent(found, page, parameters) {
  const further = found.next && link(page, { ...parameters, after: found.next }, found.looked ? "Search further" : "Next page");
  const said = found.looked
    ? `Searched ${count(found.looked)} tasks, ${found.order}; ${count(found.tasks.length)} of them match. There are more.`
    : `${count(found.tasks.length)} shown, ${found.order}${found.next ? "" : "; no more"}.`;
  return h("p", { class: "extent" }, h("span", { class: "dim" }, said), " ", further);
}

export function render({ overview, data, parameters }) {
  const { state = "", queue, text } = parameters;
  const tabs = STATES.map((name) => h("a", {
    href: address("tasks", { state: name, queue, text }), "aria-current": name === state ? "true" : null,
  }, MEANING[name] || name));
  const exact = data.exact && !data.tasks.some((task) => task.id === data.exact.id) ? [data.exact] : [];
  const found = { ...data, tasks: [...exact, ...data.tasks] };
  return [
    heading("Tasks"),
    form(overview, "tasks", parameters),
    h("nav", { class: "tabs", "aria-label": "States" }, tabs),
    found.tasks.length ? list(found, "Tasks") : empty("No tasks",
      data.looked ? "None among the tasks searched so far. Search further, or choose a queue or a state."
        : text || queue || state ? "No task matches. Search in another state, or in all queues." : "No task has been pushed yet."),
    extent(data, "tasks", { state, queue, text }),
  ];
}
