// The workers that hold leases.

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
    ["Longest", (row) => h("span", { title: "since its oldest claim" }, span(now() - row.since)), "number"],
    ["Next lease ends", (row) => lease(row.lease), "number"],
    ["Overdue", (row) => number(row.overdue, "bad"), "number"],
  ];
  return [
    part(overview.workers, (rows) => [
      heading("Workers", h("span", { class: "dim" }, count(new Set(rows.map((row) => row.worker)).size))),
      rows.length ? table("Workers", columns, rows, (row) => JSON.stringify([row.worker, row.queue]))
        : empty("No running tasks", "No worker has a lease. If tasks are due, the workers are down or the queues are paused."),
      h("p", { class: "dim" }, "Only workers with a lease are shown, not those that wait for tasks."),
    ]),
  ];
}
