// The workers that hold leases or wait for a task.

import { h } from "../dom.js";
import { dim, empty, heading, lease, link, named, number, part, queueLink, table } from "../parts.js";
import { count, span, now } from "../format.js";

export const label = "Workers";
export const title = () => "Workers";

export function render({ overview }) {
  const columns = [
    ["Worker", (row) => (row.worker ? named(row.worker) : dim("without a name")), "main"],
    ["Queue", (row) => queueLink(row.queue)],
    ["Running", (row) => link("tasks", { state: "running", queue: row.queue, text: row.worker }, number(row.running)), "number"],
    ["Longest", (row) => row.since === null ? dim() : h("span", { title: "since its oldest claim" }, span(now() - row.since)), "number"],
    ["Next lease ends", (row) => lease(row.lease), "number"],
    ["Overdue", (row) => number(row.overdue, "bad"), "number"],
    ["Waiting", (row) => h("span", { title: "sessions that wait for a task" }, number(row.waiting)), "number"],
  ];
  return [
    part(overview.workers, (rows) => [
      heading("Workers", h("span", { class: "dim" }, count(new Set(rows.map((row) => row.worker)).size))),
      rows.length ? table("Workers", columns, rows, (row) => JSON.stringify([row.worker, row.queue]))
        : empty("No workers", "No worker holds a lease or waits for a task. If tasks are due, the workers are down or the queues are paused."),
      h("p", { class: "dim" }, "A worker that polls instead of waiting is shown only while it has a lease. In the SQL-only edition, this holds for all workers."),
    ]),
  ];
}
