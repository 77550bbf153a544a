// What happened in a range of time, from the rows that the extension keeps.

import { h } from "../dom.js";
import { get } from "../api.js";
import { address, empty, heading, link } from "../parts.js";
import { clock, count, span } from "../format.js";
import { chart, room } from "../chart.js";
import { counts, durations } from "../scale.js";

export const label = "Activity";
export const title = () => "Activity";
export const load = ({ range, queue, kind }) => get("activity", { range, queue, kind });

const RANGES = [["hour", "hour"], ["6hours", "6 hours"], ["day", "day"], ["week", "week"], ["month", "30 days"]];

export function filterForm(overview, page, { range, queue, kind }) {
  const queues = (overview.queues.value?.queues || []).map((row) => row.queue);
  if (queue && !queues.includes(queue)) queues.push(queue);
  return h("form", { class: "search narrow", "data-filter": page, "data-range": range || "", "data-keep": true, "data-key": `${range}|${queue}|${kind}` },
    h("select", { name: "queue", "aria-label": "Queue" }, h("option", { value: "" }, "every queue"),
      queues.map((name) => h("option", { value: name, selected: name === queue }, name))),
    h("input", { type: "search", name: "kind", value: kind || "", maxlength: 200, "aria-label": "Kind", placeholder: "every kind" }),
    h("button", { class: "button" }, "Show"));
}

// The filters of this page and of the failures are in the address.
function filter(form) {
  const { queue, kind } = Object.fromEntries(new FormData(form));
  location.hash = address(form.dataset.filter, { range: form.dataset.range, queue, kind: kind.trim() });
}
document.addEventListener("submit", (event) => {
  const form = event.target.closest("form[data-filter]");
  if (!form) return;
  event.preventDefault();
  filter(form);
});

// The values of each bucket, in their order; null or 0 where there is none.
function buckets(data, rows, value, none) {
  const values = new Array(data.buckets).fill(none);
  for (const row of rows) {
    const at = Array.isArray(row) ? row[0] : row.bucket;
    if (at >= 0 && at < data.buckets) values[at] = value(row);
  }
  return values;
}

const sum = (values) => values.reduce((all, value) => all + value, 0);

const unkept = (data, queue) => `${queue ? `The queue ${queue} keeps no history` : data.unkept === 1 ? "One queue keeps no history" : `${count(data.unkept)} queues keep no history`}` +
  " (keep_history is off): completed and cancelled tasks are not counted.";

// What the numbers were computed from.
function extent(data, queue) {
  const said = [data.sample
    ? `Estimated from a sample: ${data.sample >= 10 ? Math.round(data.sample) : data.sample.toPrecision(2)}% of the pages of queue.history, ${count(data.read)} finished tasks.`
    : `From ${count(data.read)} finished tasks in queue.history, as far back as it is kept.`];
  if (data.unkept) said.push(unkept(data, queue));
  if (data.dead_cut) said.push("Of each queue, only the last 20,000 dead letters are counted.");
  if (data.live_since) said.push(`Of the tasks that have not ended, only the last 100,000 are counted as pushed, since ${clock(data.live_since, true)}.`);
  return said.join(" ");
}

export function render({ overview, data, parameters }) {
  const { range = "day", queue, kind } = parameters;
  const times = { since: data.since, step: data.step, buckets: data.buckets };
  const tabs = RANGES.map(([name, text]) => h("a", {
    href: address("activity", { range: name, queue, kind }), "aria-current": name === range ? "true" : null,
  }, text));
  const pushed = buckets(data, data.pushed, (row) => row[1], 0);
  const completed = buckets(data, data.ended, (row) => row.completed, 0);
  const cancelled = buckets(data, data.ended, (row) => row.cancelled, 0);
  const failed = buckets(data, data.failed, (row) => row[1], 0);
  const highest = Math.max(...pushed, ...completed.map((n, i) => n + cancelled[i] + failed[i]));
  const numbers = [["pushed", pushed], ["completed", completed], ["failed", failed], ["cancelled", cancelled]];
  const about = data.sample ? "about " : "";
  return [
    heading("Activity", h("span", { class: "grow" }), link("failures", { queue, kind }, "Failures by error")),
    h("nav", { class: "tabs", "aria-label": "Range" }, tabs),
    filterForm(overview, "activity", { range, queue, kind }),
    h("p", { class: "sentence" }, about, numbers.map(([text, values], i) => [
      i ? " · " : null, h("b", { class: text === "failed" && sum(values) ? "bad" : null }, count(sum(values))), ` ${text}`])),
    highest === 0 ? (queue && data.unkept
      ? empty("No history is kept", "Only dead letters and tasks that have not ended are counted, and there are none in this range.")
      : empty("Nothing happened in this range", "Choose a longer one, or another queue or kind.")) : [
      chart({
        ...times, name: "tasks", title: `Tasks in each ${span(data.step)}`, width: room(1), scale: counts(highest), format: count,
        note: "Failed tasks moved to the dead letters. A task counts as pushed while it is kept anywhere.",
        series: [
          { name: "completed", label: "completed", style: "bar", values: completed },
          { name: "cancelled", label: "cancelled", style: "bar", values: cancelled },
          { name: "failed", label: "failed", style: "bar", values: failed },
          { name: "pushed", label: "pushed", style: "line", values: pushed },
        ],
      }),
      h("div", { class: "figures" },
        percentiles(data, times, "wait", "Wait before the first claim", "Since each task was due. Tasks that ended in their first attempt."),
        percentiles(data, times, "run", "Duration of a run", "The last attempt of each completed task.")),
    ],
    h("p", { class: "extent dim" }, extent(data, queue)),
  ];
}

function percentiles(data, times, name, title, note) {
  const series = ["p50", "p95", "p99"].map((label, i) => (
    { name: label, label, style: "line", values: buckets(data, data.ended, (row) => row[name]?.[i] ?? null, null) }));
  const values = series.flatMap((one) => one.values).filter((value) => value !== null);
  if (!values.length) return h("figure", { "data-key": name }, h("figcaption", {}, h("b", {}, title)), h("p", { class: "dim" }, "No task to measure."));
  return chart({ ...times, name, title, note, width: room(2), scale: durations(values), format: span, series });
}
