// One queue: its numbers and curves, its options, the next tasks, and the last dead letters.

import { h } from "../dom.js";
import { get } from "../api.js";
import { button, counted, curve, empty, former, heading, link, part } from "../parts.js";
import { count, rate, short, span } from "../format.js";
import { list } from "./tasks.js";
import { toggle } from "./queues.js";

export const nav = "queues";
export const title = ({ name }) => name;

export async function load({ name }) {
  const [options, next, dead] = await Promise.all([
    get("queue", { name }), get("tasks", { queue: name, state: "queued" }), get("tasks", { queue: name, state: "failed" })]);
  return { options, next, dead };
}

const OPTIONS = [
  ["lease", "lease"], ["timeout", "timeout"], ["ttl", "time to start"], ["on_expired", "if not started in time"],
  ["max_queued", "queued at most"], ["max_attempts", "attempts"], ["max_running", "running at most"],
  ["max_running_per_group", "running of a group"], ["rate_limit", "starts at most"],
  ["group_rate_limit", "starts of a group at most"], ["ageing", "ageing"],
  ["key_ttl", "keys held for"], ["delayed_head", "delayed head"], ["on_predecessor_failure", "if a predecessor fails"],
  ["durable_leases", "leases survive a crash"],
];

function options(queue) {
  const shown = OPTIONS.filter(([name]) => queue[name] !== null).map(([name, text]) =>
    [text, name.endsWith("rate_limit") ? `${queue[name]} in ${queue.rate_period}` : String(queue[name])]);
  shown.splice(2, 0, ["backoff", `${queue.backoff_kind}, from ${queue.backoff_base} to ${queue.backoff_max}`]);
  shown.push(["fair turns", queue.fair_groups ? "yes" : "no"], ["history", queue.keep_history ? queue.keep_payloads ? "kept" : "kept without payloads" : "not kept"]);
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function render({ overview, data, parameters: { name } }) {
  if (!data.options) return empty(`There is no queue ${name}`, link("queues", {}, "All queues"));
  const { paused_at: paused, ageing, fair_groups: fair } = data.options;
  const row = overview.queues.value?.queues.find((queue) => queue.queue === name);
  // Ageing and fair turns decide at the time of a claim.
  const next = ageing !== null || fair ? "Due, by priority" : "Next to be claimed";
  return [
    heading(name, paused !== null ? h("span", { class: "badge paused" }, "paused") : null, h("span", { class: "grow" }), former("push", name, "Push a task…"),
      toggle({ queue: name, paused: paused !== null }), row?.dead ? button("redrive", name, "Redrive…", { "data-offered": Math.min(row.dead, 1000) }) : null),
    row ? [numbers(row, overview.curves.queues[name]), counted([row])] : part(overview.queues, () => h("p", { class: "dim pad" }, "This queue is not among those whose tasks are counted here.")),
    h("h2", {}, next),
    data.next.tasks.length ? list(first(data.next), next, { without: ["Queue", "State", "Worker"] })
      : h("p", { class: "dim pad" }, "Nothing is due."),
    data.next.tasks.length > 8 ? h("p", { class: "more" }, link("tasks", { queue: name, state: "queued" }, "More")) : null,
    h("h2", {}, "Failed last"),
    data.dead.tasks.length ? list(first(data.dead), "Failed last", { without: ["Queue", "State"] }) : h("p", { class: "dim pad" }, "No dead letters."),
    data.dead.tasks.length > 8 ? h("p", { class: "more" }, link("dead", { queue: name }, "More")) : null,
    h("h2", {}, "Options"), options(data.options),
  ];
}

// The counts, and the curves if there are any.
function numbers(row, points) {
  const name = row.queue;
  const large = { width: 560, height: 96, large: true };
  const most = (which) => Math.max(0, ...points.filter(Boolean).map((point) => point[which]));
  const figure = (text, show, value, which) => h("figure", {}, h("figcaption", {}, h("span", { class: "what" }, text),
    h("span", {}, h("span", { class: "dim" }, points ? `at most ${show(most(which))} in ten minutes, now ` : "now "), h("b", {}, show(value)))),
    points ? curve(points, which, large) : null);
  const states = [
    ["running", row.running, "tasks", { state: "running" }], ["scheduled", row.scheduled, "tasks", { state: "scheduled" }],
    ["waiting", row.waiting, "tasks", { state: "waiting" }], ["blocked in their group", row.blocked, "tasks", { state: "blocked" }],
    ["dead", row.dead, "dead", {}],
  ].filter(([text, n]) => n || text === "running" || text === "dead");
  return [
    h("p", { class: "sentence" }, states.map(([text, n, page, more], i) => [
      i ? " · " : null, link(page, { queue: name, ...more }, h("b", { class: text === "dead" && n ? "bad" : null }, count(n)), ` ${text}`)]),
      ` · last hour: ${count(row.completed_last_hour)} completed, ${count(row.failed_last_hour)} failed, ${count(row.cancelled_last_hour)} cancelled`),
    h("div", { class: "figures" },
      figure(row.oldest_due > 0 ? `due, the oldest for ${span(row.oldest_due)}` : "due", short, row.queued, 0),
      figure("completed a second", rate, row.completed_per_second, 1)),
  ];
}

const first = (found) => ({ ...found, tasks: found.tasks.slice(0, 8) });
