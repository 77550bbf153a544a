// All queues, with the problems above them.

import { h } from "../dom.js";
import { button, counted, curve, dim, empty, heading, link, number, part, queueLink, table, total } from "../parts.js";
import { count, rate, short, span } from "../format.js";
import { troubles } from "./health.js";

export const label = "Queues";
export const title = () => "Queues";

// How many queues the overview has at most.
const MOST = 2000;

function tile(name, value, kind, page, parameters, chart = null) {
  return h("a", { class: `tile ${kind}`, href: page, "data-key": name }, h("span", { class: "what" }, name),
    h("span", { class: "value" }, value), chart);
}

export function toggle(row) {
  return row.paused ? button("resume", row.queue, "Resume", { style: "primary" }) : button("pause", row.queue, "Pause");
}

export function render({ overview }) {
  return [
    troubles(overview.health),
    part(overview.queues, ({ queues }) => {
      const sum = (name) => queues.reduce((all, row) => all + row[name], 0);
      const later = sum("scheduled") + sum("waiting") + sum("blocked");
      // A sum without the queues that have no curve would be too low.
      const all = queues.every((row) => overview.curves.queues[row.queue]) ? total(overview.curves) : [];
      const wide = { width: 150, height: 34 };
      return [
        h("div", { class: "tiles" },
          tile("due now", short(sum("queued")), "", "#/tasks?state=queued", {}, curve(all, 0, wide)),
          tile("completed a second", rate(sum("completed_per_second")), "", "#/tasks?state=completed", {}, curve(all, 1, wide)),
          tile("running", short(sum("running")), "", "#/tasks?state=running"),
          tile("not ready", short(later), "", "#/tasks?state=scheduled"),
          tile("dead letters", short(sum("dead")), sum("dead") ? "bad" : "", "#/dead")),
        heading("Queues", h("span", { class: "dim" }, count(queues.length))),
        counted(queues),
        queues.length >= MOST ? h("p", { class: "dim" }, `Only the first ${count(MOST)} queues are shown and counted.`) : null,
        queues.length ? list(queues, overview.curves) : empty("No queue yet", "Create one: ", h("code", {}, "SELECT queue.create('mail')")),
      ];
    }),
  ];
}

function list(queues, curves) {
  const columns = [
    ["Queue", (row) => h("span", { class: "queue" }, queueLink(row.queue), row.paused ? h("span", { class: "badge paused" }, "paused") : null), "main"],
    ["Due", (row) => link("tasks", { queue: row.queue, state: "queued" }, number(row.queued)), "number keep"],
    [".Due, last ten minutes", (row) => curve(curves.queues[row.queue], 0), "chart"],
    ["Oldest due", (row) => (row.oldest_due > 0 ? h("span", { class: row.oldest_due > 600 ? "bad" : null }, span(row.oldest_due)) : dim()), "number"],
    ["Running", (row) => link("tasks", { queue: row.queue, state: "running" }, number(row.running)), "number"],
    ["Not ready", (row) => later(row), "number"],
    ["Dead", (row) => link("dead", { queue: row.queue }, number(row.dead, "bad")), "number"],
    ["Per second", (row) => h("span", { class: row.completed_per_second ? null : "dim" }, rate(row.completed_per_second)), "number keep"],
    [".Completed a second, last ten minutes", (row) => curve(curves.queues[row.queue], 1), "chart"],
    ["Last hour", (row) => hour(row), "number"],
    [".Actions", toggle, "act"],
  ];
  return table("The queues", columns, queues, (row) => row.queue, (row) => (row.paused ? "paused" : null));
}

function later(row) {
  const parts = [["scheduled", row.scheduled], ["waiting", row.waiting], ["blocked", row.blocked]].filter(([, n]) => n);
  if (!parts.length) return dim("0");
  const [state] = parts[0];
  const text = parts.map(([name, n]) => `${count(n)} ${name}`).join(", ");
  return link("tasks", { queue: row.queue, state }, h("span", { title: text }, short(parts.reduce((sum, [, n]) => sum + n, 0))));
}

function hour(row) {
  return h("span", { title: `last hour: ${count(row.completed_last_hour)} completed, ${count(row.failed_last_hour)} failed for good, ${count(row.cancelled_last_hour)} cancelled` },
    number(row.completed_last_hour), row.failed_last_hour ? h("span", { class: "bad" }, ` ${short(row.failed_last_hour)} failed`) : null);
}
