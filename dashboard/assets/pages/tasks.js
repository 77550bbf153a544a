// Tasks by state, and the search. Every list is bounded, and shows how far it has searched.

import { h } from "../dom.js";
import { get } from "../api.js";
import { bar, pick } from "../bulk.js";
import { chips, filterOf, form, search } from "../filter.js";
import { address, badge, dim, empty, former, heading, lease, link, named, queueLink, table, taskLink, when } from "../parts.js";
import { count, now, span } from "../format.js";

export const label = "Tasks";
export const title = ({ state }) => (state ? `${state} tasks` : "Tasks");

export { search };

const STATES = ["", "live", "queued", "scheduled", "running", "waiting", "blocked", "failed", "completed", "cancelled"];
const MEANING = { "": "all", live: "not finished" };

export const load = (parameters) => get("tasks", { ...filterOf(parameters), after: parameters.after });

// A table of tasks, without columns that would have the same value in each row.
export function list(found, caption, { without = [], act = null, picks = false } = {}) {
  const columns = [
    ["Task", (task) => [picks ? pick(task) : null, taskLink(task.id)], "main"],
    ["State", (task) => badge(task.state)],
    ["Queue", (task) => queueLink(task.queue)],
    ["When", moment, "short"],
    ["Attempt", attempts, "number"],
    ["Kind, key or group", words, "words"],
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

// The tasks of a list, after the one whose id was searched.
export function withExact(data) {
  const known = !data.exact || data.tasks.some((task) => task.id === data.exact.id);
  return known ? data : { ...data, tasks: [data.exact, ...data.tasks] };
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
  const { state = "", queue } = parameters;
  const filter = filterOf(parameters);
  const tabs = STATES.map((name) => h("a", {
    href: address("tasks", { ...filter, state: name }), "aria-current": name === state ? "true" : null,
  }, MEANING[name] || name));
  const found = withExact(data);
  return [
    heading("Tasks", h("span", { class: "grow" }), former("push", queue || "default", "Push a task…")),
    form(overview, "tasks", parameters),
    chips("tasks", parameters),
    h("nav", { class: "tabs", "aria-label": "States" }, tabs),
    bar(parameters, found),
    found.tasks.length ? list(found, "Tasks", { picks: true }) : empty("No tasks",
      data.looked ? "None among the tasks searched so far. Search further, or choose a queue or a state."
        : Object.keys(filter).length ? "No task matches. Search in another state, or in all queues." : "No task has been pushed yet."),
    extent(data, "tasks", filter),
  ];
}
