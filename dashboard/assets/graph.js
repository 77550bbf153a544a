// What a task belongs to, as boxes with arrows: the tasks of the batch whose callback it is, the steps it has stored, and
// what it waits for.

import { h, svg } from "./dom.js";
import { address } from "./parts.js";
import { ago, count } from "./format.js";
import { room } from "./chart.js";

export const BOX = { width: 168, height: 46, gap: 26 };

function boxes({ id, state, context }) {
  const { steps, steps_in_all: all, batch } = context;
  const found = [];
  if (batch) {
    const ended = [[batch.completed, "completed"], [batch.failed, "failed"], [batch.cancelled, "cancelled"]]
      .filter(([n]) => n).map(([n, text]) => `${count(n)} ${text}`);
    found.push({ kind: "batch", title: `Batch: ${count(batch.unfinished)} unfinished`, text: ended.join(", ") || (batch.sealed ? "sealed" : "not sealed") });
    found.push({ kind: "self", title: `Task ${id}`, text: "callback of the batch" });
  } else {
    found.push({ kind: "self", title: `Task ${id}`, text: state });
  }
  if (all > steps.length) found.push({ kind: "step", title: `${count(all - steps.length)} earlier steps`, text: "" });
  for (const { name, kind, at } of steps) {
    const other = kind === "task";
    found.push({
      kind: at === null ? "awaited" : "step", title: other ? `Task ${name}` : name,
      text: at === null ? `waits for this ${kind}` : `${kind}, ${ago(at)}`, href: other ? address("task", { id: name }) : null,
    });
  }
  return found;
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export function box({ kind, title, text, href }, [x, y]) {
  const drawn = svg("g", { class: `box ${kind}` }, svg("title", {}, `${title}: ${text}`),
    svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 7 }),
    svg("text", { x: x + 10, y: y + 19 }, cut(title, 22)), svg("text", { class: "mark", x: x + 10, y: y + 36 }, cut(text, 27)));
  return href ? svg("a", { href }, drawn) : drawn;
}

export function graph(task) {
  if (!task.context || (!task.context.batch && !task.context.steps.length)) return null;
  const found = boxes(task);
  const width = room(1);
  const columns = Math.max(1, Math.floor((width + BOX.gap - 2) / (BOX.width + BOX.gap)));
  const at = (i) => [1 + (i % columns) * (BOX.width + BOX.gap), 1 + Math.floor(i / columns) * (BOX.height + BOX.gap)];
  const height = at(found.length - 1)[1] + BOX.height + 1;
  const drawn = found.map((found, i) => box(found, at(i)));
  // Within a row to the right; to the start of the next row from below the last box.
  const arrows = found.slice(1).map((_, i) => {
    const [[x, y], [to, down]] = [at(i), at(i + 1)];
    const middle = y + BOX.height / 2;
    if (down === y) return svg("path", { class: "arrow", d: `M${x + BOX.width + 3} ${middle}H${to - 4}m-5 -4l5 4l-5 4` });
    const [below, start] = [y + BOX.height + BOX.gap / 2, to + BOX.width / 2];
    return svg("path", { class: "arrow", d: `M${x + BOX.width / 2} ${y + BOX.height + 3}V${below}H${start}V${down - 4}m-4 -5l4 5l4 -5` });
  });
  return h("figure", { class: "charted", "data-key": "graph" },
    h("figcaption", {}, h("b", {}, task.context.batch ? "Batch and steps" : "Steps")),
    svg("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "What the task belongs to" },
      arrows, drawn));
}
