// The attempts of a task as a picture, to scale: a row for each, with the time before it and the run.

import { h, svg } from "./dom.js";
import { now, span } from "./format.js";
import { room } from "./chart.js";
import { times } from "./scale.js";

const ROW = 40;
// A picture that is narrower has the second half of a row's text on a line of its own.
const NARROW = 560;
const LINE = 16;
const EDGE = 8;

// Each row: its text, by whom, where it begins, when it was due, when it was claimed (null if that is not known), and its end.
function rows(task) {
  const found = [];
  let from = task.created;
  const add = (kind, attempt, said, end, worker, claimed) => {
    const start = claimed !== null && claimed >= from && claimed <= end ? claimed : null;
    const due = start !== null && task.run_at >= from && task.run_at <= start ? task.run_at : null;
    const took = start === null ? "" : ` after ${span(end - start)}`;
    found.push({ kind, from, due, start, end, text: `Attempt ${attempt} ${said}${took}`, by: worker ? `by ${worker}` : "" });
    from = end;
  };
  const seconds = (time) => (time ? Date.parse(time) / 1000 : null);
  for (const { attempt, claimed, at, worker } of task.errors || []) {
    if (claimed) add("failed", attempt, "failed", seconds(at), worker, seconds(claimed));
    else {
      found.push({ kind: "none", from, due: null, start: null, end: seconds(at), text: "failed without being claimed" });
      from = seconds(at);
    }
  }
  if (task.state === "running") add("running", task.attempt, "runs", Math.max(now(), task.claimed), task.worker, task.claimed);
  if (task.state === "completed") add("completed", task.attempt, "completed", task.ended, task.worker, task.claimed);
  if (task.state === "cancelled" || (task.state === "failed" && !found.length)) {
    if (task.claimed !== null && task.claimed >= from) add(task.state, task.attempt, task.state, task.ended, task.worker, task.claimed);
    else found.push({ kind: "none", from, due: null, start: null, end: task.ended, text: `${task.state} without another attempt` });
  }
  if (task.state === "scheduled") {
    found.push({ kind: "next", from, due: task.run_at, start: null, end: task.run_at, text: `Attempt ${task.attempt + 1} is due in ${span(task.run_at - now())}` });
  }
  if (task.state === "queued" || task.state === "waiting") {
    const due = task.state === "queued" && task.run_at >= from ? task.run_at : null;
    found.push({ kind: "next", from, due, start: null, end: Math.max(now(), from), text: `Attempt ${task.attempt + 1} ${task.state === "queued" ? "is due" : "waits"}` });
  }
  return found;
}

const before = (row) => (row.start === null ? "" : [
  row.due === null ? `waited ${span(row.start - row.from)}`
    : `due after ${span(row.due - row.from)}, waited ${span(row.start - row.due)}`].join(""));

// Marks of a short time count from the push, because the clock shows whole seconds.
function axis(from, to, marks) {
  if (to - from > 30) return times(from, to, marks);
  const raw = (to - from) / marks;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((n) => n * power >= raw) * power;
  const at = Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, i) => from + i * step);
  return { at, text: (time) => (time === from ? "0" : `+${span(Math.round((time - from) * 1000) / 1000)}`) };
}

export function timeline(task) {
  const attempts = rows(task);
  if (!attempts.length) return null;
  const width = room(1);
  const from = task.created;
  const to = Math.max(from + 0.001, ...attempts.map(({ end }) => end));
  const second = width < NARROW ? LINE : 0;
  const high = ROW + second;
  const height = attempts.length * high + 22;
  const x = (time) => EDGE + ((time - from) / (to - from)) * (width - 2 * EDGE);
  const marks = axis(from, to, Math.max(2, Math.floor(width / 110)));
  const part = (kind, a, b, y, thick) => svg("rect", {
    class: kind, x: x(a).toFixed(1), y: y + second, width: Math.max(1.5, x(b) - x(a)).toFixed(1), height: thick, rx: 2,
  });
  const drawn = attempts.map((row, i) => {
    const y = i * high;
    const more = [row.by, before(row)].filter(Boolean).join(" · ");
    const place = second ? { x: EDGE, dy: LINE } : {};
    return svg("g", { class: `attempt ${row.kind}` },
      svg("text", { x: EDGE, y: y + 13 }, row.text, more ? svg("tspan", { class: "mark", ...place }, second ? more : `${row.by ? " " : " · "}${more}`) : null),
      row.start !== null ? [
        row.due !== null && row.due > row.from ? part("backoff", row.from, row.due, y + 24, 4) : null,
        part("wait", row.due ?? row.from, row.start, y + 24, 4), part("run", row.start, row.end, y + 19, 14),
      ] : row.kind === "next" || row.kind === "none" ? [
        part("backoff", row.from, row.due ?? row.end, y + 24, 4),
        row.due !== null ? part("wait", row.due, row.end, y + 24, 4) : null,
        row.due !== null ? svg("circle", { class: "due", cx: x(row.due).toFixed(1), cy: y + 26 + second, r: 4 }) : null,
      ] : part("unknown", row.from, row.end, y + 19, 14));
  });
  return h("figure", { class: "charted", "data-key": "timeline" },
    h("figcaption", {}, h("b", {}, "Attempts"), h("span", { class: "dim" }, span(to - from))),
    svg("svg", { class: "timeline", viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      "aria-label": `Attempts: ${attempts.map(({ text, by }) => [text, by].filter(Boolean).join(" ")).join("; ")}` },
      marks.at.map((time) => {
        const anchor = x(time) < 30 ? "start" : x(time) > width - 30 ? "end" : "middle";
        return [svg("line", { class: "grid", x1: x(time), x2: x(time), y1: 0, y2: height - 18 }),
          svg("text", { class: "mark", x: x(time), y: height - 5, "text-anchor": anchor }, marks.text(time))];
      }), drawn));
}
