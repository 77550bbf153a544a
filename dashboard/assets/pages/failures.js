// The last failures, grouped by error.

import { h } from "../dom.js";
import { get } from "../api.js";
import { badge, dim, empty, heading, link, named, queueLink, table, taskLink, when } from "../parts.js";
import { count } from "../format.js";
import { filterForm } from "./activity.js";

export const label = "Errors";
export const title = ({ error }) => error || "Errors";
export const load = ({ queue, kind, error }) => get("failures", { queue, kind, error });

const some = (names, show) => (names || []).length
  ? [names.slice(0, 4).map((name, i) => [i ? ", " : null, show(name)]), names.length > 4 ? ", …" : null] : dim();

function extent(data) {
  const dead = data.dead_cut ? `the last ${count(data.dead_read)} dead letters, at most 1,000 of a queue` : `all dead letters (${count(data.dead_read)})`;
  const live = data.live_cut ? `the ${count(data.live_read)} oldest tasks that have not ended` : `all tasks that have not ended (${count(data.live_read)})`;
  return `Searched ${dead}, and ${live}. Each task is listed under its last error.`;
}

export function render({ overview, data, parameters: { queue, kind, error } }) {
  const further = h("p", { class: "extent dim" }, extent(data));
  return error ? [
    heading(h("span", { class: "pattern" }, error)),
    h("p", { class: "sentence" }, h("b", {}, count(data.found)), data.found === 1 ? " task failed" : " tasks failed", " with this error",
      data.found > data.tasks.length ? `; the last ${count(data.tasks.length)} are shown` : null, ". ", link("failures", { queue, kind }, "All errors")),
    data.tasks.length ? tasks(data.tasks) : empty("No such error", link("failures", {}, "All errors")), further,
  ] : [
    heading("Errors", h("span", { class: "grow" }), link("dead", { queue }, "Dead letters")),
    filterForm(overview, "failures", { queue, kind }),
    data.groups.length ? groups(data.groups, { queue, kind })
      : empty("No failures", "Dead letters, and tasks whose last attempt failed, are grouped here by error."),
    further,
  ];
}

const groups = (rows, filters) => table("Errors", [
  ["Error", (row) => link("failures", { ...filters, error: row.error }, h("span", { class: "error pattern" }, row.error)), "wide"],
  ["Tasks", (row) => h("b", {}, count(row.tasks)), "number"],
  ["Dead", (row) => (row.dead ? count(row.dead) : dim("0")), "number"],
  ["Queues", (row) => some(row.queues, queueLink)],
  ["Kinds", (row) => some(row.kinds, named)],
  ["First", (row) => when(row.first), "short"],
  ["Last", (row) => when(row.last), "short"],
  ["Example", (row) => taskLink(row.example), "short"],
], rows, (row) => row.error);

const tasks = (rows) => table("Tasks", [
  ["Task", (row) => taskLink(row.id), "main"],
  ["State", (row) => (row.dead ? badge("failed") : h("span", { class: "badge scheduled" }, "to be retried"))],
  ["Queue", (row) => queueLink(row.queue)],
  ["Kind", (row) => (row.kind ? named(row.kind) : dim())],
  ["Failed", (row) => when(row.at), "short"],
  ["Error", (row) => h("span", { class: "error", title: row.error }, row.error), "wide"],
], rows, (row) => row.id);
