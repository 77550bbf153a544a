// Dead letters, and redriving them.

import { h } from "../dom.js";
import { get } from "../api.js";
import { button, empty, heading, link, named, number } from "../parts.js";
import { bar } from "../bulk.js";
import { chips, filterOf, form } from "../filter.js";
import { extent, list, withExact } from "./tasks.js";

export const label = "Dead letters";
export const title = () => "Dead letters";
export const load = (parameters) => get("tasks", { ...filterOf(parameters), state: "failed", after: parameters.after });

export function render({ overview, data, parameters }) {
  const { queue } = parameters;
  const { state, ...filter } = filterOf(parameters);
  const found = data.exact?.state === "failed" ? withExact(data) : data;
  const rows = (overview.queues.value?.queues || []).filter((row) => row.dead);
  const groups = rows.map((row) => h("div", { class: "group", "data-key": row.queue },
    link("dead", { ...filter, queue: row.queue === queue ? "" : row.queue }, named(row.queue), number(row.dead, "bad")),
    h("span", { class: "dim" }, row.failed_last_hour ? `${row.failed_last_hour} in the last hour` : "none in the last hour"),
    button("redrive", row.queue, "Redrive…", { "data-offered": Math.min(row.dead, 1000) })));
  const retry = (task) => button("retry", task.id, "Retry");
  return [
    heading("Dead letters", h("span", { class: "grow" }), link("failures", { queue }, "By error")),
    groups.length ? h("div", { class: "groups" }, groups) : null,
    form(overview, "dead", parameters),
    chips("dead", parameters),
    bar({ ...filter, state: "failed" }, found),
    found.tasks.length ? list(found, "Dead letters", { without: ["State"], act: retry, picks: true })
      : groups.length && Object.keys(filter).length ? empty("No matching dead letters", link("dead", {}, "All dead letters"))
        : empty("No dead letters", "Tasks that fail for good, after their last attempt, are kept here."),
    extent(data, "dead", filter),
  ];
}
