// The tasks that a task waits for, and those that wait for it, as boxes beside it; on a phone above and below it.

import { h, svg } from "./dom.js";
import { address } from "./parts.js";
import { count } from "./format.js";
import { room } from "./chart.js";
import { BOX, box } from "./graph.js";

const ENDED = ["completed", "failed", "cancelled", "purged"];
const GAP = 8;
const ARROW = 40;

function stack(tasks, all, member) {
  const boxes = tasks.map((other) => ({
    kind: ENDED.includes(other.state) ? "step" : "awaited", title: `Task ${other.id}`,
    text: [other.state ?? "in another queue", other.member ? member : null].filter(Boolean).join(", "), href: address("task", { id: other.id }),
  }));
  const more = all - tasks.length;
  if (more > 0) boxes.push({ kind: "step", title: `${all > 10000 ? "more than 10,000" : count(more)} more`, text: "" });
  return boxes;
}

export function dependencies(task) {
  const { before = [], before_in_all: earlier, after = [], after_in_all: later } = task.context || {};
  if (!before.length && !after.length) return null;
  const stacks = [stack(before, earlier, "in the batch"), [{ kind: "self", title: `Task ${task.id}`, text: task.state }],
    stack(after, later, "callback of the batch")].filter((boxes) => boxes.length);
  const width = room(1);
  const tall = (boxes) => boxes.length * (BOX.height + GAP) - GAP;
  const beside = stacks.length * (BOX.width + ARROW) - ARROW + 2 <= width;
  const height = 2 + (beside ? Math.max(...stacks.map(tall)) : stacks.reduce((sum, boxes) => sum + tall(boxes) + ARROW, -ARROW));
  const drawn = [];
  let down = 1;
  stacks.forEach((boxes, n) => {
    const x = 1 + (beside ? n * (BOX.width + ARROW) : 0);
    const y = beside ? (height - tall(boxes)) / 2 : down;
    if (n > 0) {
      drawn.push(svg("path", { class: "arrow", d: beside
        ? `M${x - ARROW + 6} ${height / 2}H${x - 6}m-5 -4l5 4l-5 4`
        : `M${x + BOX.width / 2} ${y - ARROW + 6}V${y - 6}m-4 -5l4 5l4 -5` }));
    }
    drawn.push(boxes.map((found, i) => box(found, [x, y + i * (BOX.height + GAP)])));
    down += tall(boxes) + ARROW;
  });
  return h("figure", { class: "charted", "data-key": "dependencies" },
    h("figcaption", {}, h("b", {}, before.length ? after.length ? "Waits for, and waited for by" : "Waits for" : "Waited for by")),
    svg("svg", { class: "graph dependencies", viewBox: `0 0 ${width} ${height}`, width, height, role: "group",
      "aria-label": "What the task waits for, and what waits for it" }, drawn));
}
