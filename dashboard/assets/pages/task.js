// One task and its events.

import { h } from "../dom.js";
import { get, hidden } from "../api.js";
import { badge, button, dim, heading, lease, named, queueLink, when } from "../parts.js";
import { timeline } from "../timeline.js";
import { graph } from "../graph.js";
import { dependencies } from "../dependencies.js";
import { bytes, clock, count, now, span } from "../format.js";

export const nav = "tasks";
export const title = ({ id }) => `Task ${id}`;
export const load = ({ id }) => get("task", { id });

// The events of the task, the last first. Each event: time, kind, title, details.
function story(task) {
  const events = [[task.created, "pushed", "Pushed", null]];
  for (const { at, attempt, worker, error } of task.errors || []) {
    const time = Date.parse(at) / 1000;
    events.push([time, "error", ["Attempt ", String(attempt), " failed", worker ? [" at ", named(worker)] : null],
      h("pre", { class: "said" }, error)]);
  }
  const worker = task.worker ? [" by ", named(task.worker)] : null;
  if (task.state === "running") {
    events.push([task.claimed, "running", [`Attempt ${task.attempt} claimed`, worker], h("p", {}, "Lease: ", lease(task.lease))]);
  }
  if (task.state === "completed") {
    const took = task.claimed ? [", after ", span(task.ended - task.claimed)] : null;
    events.push([task.ended, "completed", ["Completed", worker, took], null]);
  }
  if (task.cancel_requested) events.push([task.cancel_requested, "cancelled", "Cancellation requested", null]);
  if (task.state === "cancelled") events.push([task.ended, "cancelled", "Cancelled", null]);
  if (task.state === "failed") events.push([task.ended, "failed", "Failed for good", null]);
  if (task.state === "scheduled") events.push([task.run_at, "next", `Attempt ${task.attempt + 1} is due`, null]);
  if (task.state === "queued") events.push([task.run_at, "next", "Due, not claimed yet", null]);
  if (task.state === "waiting") events.push([now(), "next", "Waiting for other tasks", null]);
  return events.map((event, i) => [...event, i]).sort((a, b) => b[0] - a[0] || b[4] - a[4]);
}

export function render({ data: task }) {
  const unseen = task.errors_in_all - (task.errors || []).length;
  const live = ["queued", "scheduled", "running", "waiting"].includes(task.state);
  const facts = [
    ["queue", queueLink(task.queue)], ["attempts", `${task.attempt} of ${task.max_attempts ?? "?"}`],
    ["priority", count(task.priority)], ["token", count(task.token)],
    ["kind", task.kind ? named(task.kind) : dim()],
    ["key", task.key ? named(task.key) : dim()],
    ["group", task.group ? named(task.group) : dim()],
    ["pushed", when(task.created, (time) => clock(time))], ["due", when(task.run_at, (time) => clock(time))],
    ...(task.own_lease ? [["its lease", task.own_lease]] : []),
    ...(task.timeout ? [["timeout", task.timeout]] : []),
    ...(task.start_by ? [["start by", when(task.start_by, (time) => clock(time))]] : []),
    ...(task.weight > 1 ? [["weight", String(task.weight)]] : []),
    [live ? "age" : "from push to end", span((live ? now() : task.ended) - task.created)],
  ];
  return [
    heading(["Task ", h("span", { class: "id" }, task.id)], badge(task.state), h("span", { class: "grow" }),
      task.state === "scheduled" ? button("run_now", task.id, "Run now") : null,
      live ? button("reprioritise", task.id, "Reprioritise…", { "data-offered": task.priority }) : null,
      live ? button("cancel", task.id, "Cancel", { style: "danger" }) : null,
      task.state === "failed" ? button("retry", task.id, "Retry", { style: "primary" }) : null),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    timeline(task), graph(task), dependencies(task),
    h("div", { class: "columns" },
      h("section", {}, h("h2", {}, "Story"),
        h("ol", { class: "story" }, story(task).map(([time, kind, text, more]) => h("li", { class: kind },
          h("div", { class: "event" }, h("b", {}, text), h("span", { class: "dim" }, when(time), " · ", clock(time))), more))),
        unseen > 0 ? h("p", { class: "dim" }, `${count(unseen)} earlier errors are not shown.`) : null),
      h("section", {}, documents(task))),
  ];
}

function documents(task) {
  if (hidden()) return [h("h2", {}, "Payload"), h("p", { class: "dim pad" }, "Payloads are hidden.")];
  return task.documents.map(({ name, text, bytes: size }) => [
    h("h2", {}, name, h("span", { class: "dim" }, ` ${bytes(size)}`)),
    h("pre", { class: `document ${name}`, tabindex: "0", "aria-label": name }, text),
    text.length >= 100000 ? h("p", { class: "dim" }, "Only the beginning is shown.") : null]);
}
