// A chart over time: bars that are stacked, and lines. The pointer, or the arrow keys when the chart has the focus,
// choose a bucket, whose values are then shown. The same values are in a table below.

import { children, h, svg } from "./dom.js";
import { table } from "./parts.js";
import { clock, now } from "./format.js";
import { times } from "./scale.js";

const HEIGHT = 210;
const EDGE = { left: 50, right: 10, top: 10, bottom: 24 };
const TIP = 190;

// By name: the model of each chart on the page, its place on the screen, and the chosen bucket.
const charts = new Map();

// The width of a chart if `columns` of them are next to each other.
export function room(columns) {
  const main = document.getElementById("main");
  const style = getComputedStyle(main);
  const inner = main.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const beside = inner > 700 ? columns : 1;
  return Math.max(240, Math.round((inner - (beside - 1) * 12) / beside - 28));
}

// model: name, title, note, since, step, buckets, width, scale, format, and series: name, label, style (bar or line), values.
export function chart(model) {
  const { name, title, note, since, step, buckets, width, scale, series } = model;
  const inner = width - EDGE.left - EDGE.right;
  const x = (bucket) => EDGE.left + (bucket / buckets) * inner;
  const y = (value) => HEIGHT - EDGE.bottom - scale.place(value) * (HEIGHT - EDGE.bottom - EDGE.top);
  const axis = times(since, since + step * buckets, Math.max(3, Math.floor(inner / 85)));
  const bucket = Math.min(charts.get(name)?.bucket ?? NaN, buckets - 1);
  const view = { model, x, bucket: Number.isNaN(bucket) ? null : bucket };
  charts.set(name, view);
  // The tooltip is kept while the page refreshes, so it is brought up to date by itself.
  queueMicrotask(() => point(name, view.bucket));
  const base = HEIGHT - EDGE.bottom;
  return h("figure", { class: "charted", "data-key": name },
    h("figcaption", {}, h("b", {}, title), h("ul", { class: "legend" }, series.map(({ name: key, label, style }) =>
      h("li", {}, swatch(key, style), label)))),
    note ? h("p", { class: "note-line dim" }, note) : null,
    svg("svg", {
      class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, tabindex: 0, role: "slider", "data-chart": name,
      "aria-label": `${title}. Arrow keys choose a time; a table follows.`, "aria-valuemin": 0, "aria-valuemax": buckets - 1,
      "aria-valuenow": view.bucket ?? buckets - 1, "aria-valuetext": sentence(model, view.bucket ?? buckets - 1),
    },
      scale.at.map((value) => [
        svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }),
        svg("text", { class: "mark", x: EDGE.left - 7, y: y(value) + 4, "text-anchor": "end" }, scale.text(value))]),
      axis.at.map((time) => {
        const at = x((time - since) / step);
        const anchor = at > width - 30 ? "end" : at < EDGE.left + 16 ? "start" : "middle";
        return [svg("line", { class: "tick", x1: at, x2: at, y1: base, y2: base + 4 }),
          svg("text", { class: "mark", x: at, y: HEIGHT - 6, "text-anchor": anchor }, axis.text(time))];
      }),
      bars(series.filter(({ style }) => style === "bar"), buckets, x, y),
      series.filter(({ style }) => style === "line").map((one) => line(one, x, y)),
      svg("g", { class: "cursor", "data-keep": true })),
    h("details", { class: "numbers" }, h("summary", {}, "Table"),
      table(title, [["Time", (row) => period(model, row), "main"],
        ...series.map(({ label, values }) => [label, (row) => text(model, values[row]), "number"])],
      Array.from({ length: buckets }, (_, i) => buckets - 1 - i), (row) => since + row * step)));
}

const swatch = (name, style) => svg("svg", { class: `swatch series ${name}`, width: 14, height: 10, "aria-hidden": "true" },
  style === "bar" ? svg("path", { class: "bar", d: "M2 0h10v10h-10z" }) : svg("path", { class: "line", d: "M1 5h12" }));

// Stacked from the bottom. What is not 0 is at least a pixel high.
function bars(series, buckets, x, y) {
  const drawn = series.map(() => "");
  const wide = x(1) - x(0);
  const gap = wide > 5 ? 1.5 : 0.5;
  for (let i = 0; i < buckets; i += 1) {
    let sum = 0;
    let top = y(0);
    series.forEach(({ values }, s) => {
      if (!values[i]) return;
      sum += values[i];
      const high = Math.max(1.5, top - y(sum));
      top -= high;
      drawn[s] += `M${(x(i) + gap / 2).toFixed(1)} ${top.toFixed(1)}h${(wide - gap).toFixed(1)}v${high.toFixed(1)}h-${(wide - gap).toFixed(1)}z`;
    });
  }
  return series.map(({ name }, s) => svg("path", { class: `series bar ${name}`, d: drawn[s] }));
}

// Interrupted where there is no value.
function line({ name, values }, x, y) {
  let path = "";
  values.forEach((value, i) => {
    if (value === null || value === undefined) return;
    const at = `${x(i + 0.5).toFixed(1)} ${y(value).toFixed(1)}`;
    path += values[i - 1] === null || values[i - 1] === undefined ? `M${at}h0` : `L${at}`;
  });
  return svg("path", { class: `series line ${name}`, d: path });
}

const text = ({ format }, value) => (value === null || value === undefined ? "–" : format(value));

function period({ since, step }, bucket) {
  const [from, to] = [since + bucket * step, since + (bucket + 1) * step];
  const dated = step * 60 > 86400;
  const end = clock(to, true);
  const start = clock(from, dated).replace(/:00$/, "");
  return `${start} – ${(end.slice(0, 10) === clock(from, true).slice(0, 10) || !dated ? end.slice(11) : end).replace(/:00$/, "")}`;
}

const unfinished = ({ since, step }, bucket) => since + (bucket + 1) * step > now();
const sentence = (model, bucket) => [`${period(model, bucket)}${unfinished(model, bucket) ? ", so far" : ""}`,
  ...model.series.map(({ label, values }) => `${label} ${text(model, values[bucket])}`)].join(", ");

// Shows the values of a bucket, or of none.
function point(name, bucket) {
  const view = charts.get(name);
  const drawing = document.querySelector(`svg.chart[data-chart="${name}"]`);
  if (!view || !drawing) return;
  view.bucket = bucket;
  const { model, x } = view;
  const cursor = drawing.querySelector(".cursor");
  if (bucket === null) { children(cursor, []); return; }
  drawing.setAttribute("aria-valuenow", bucket);
  drawing.setAttribute("aria-valuetext", sentence(model, bucket));
  const [left, middle] = [x(bucket), x(bucket + 0.5)];
  const tip = middle + TIP + 14 < model.width ? middle + 10 : Math.max(2, middle - TIP - 10);
  children(cursor, [
    svg("rect", { class: "chosen", x: left, width: x(1) - x(0), y: EDGE.top, height: HEIGHT - EDGE.bottom - EDGE.top }),
    svg("foreignObject", { x: tip, y: EDGE.top, width: TIP, height: HEIGHT - EDGE.top },
      h("div", { class: "tip" }, h("b", {}, period(model, bucket)), unfinished(model, bucket) ? " so far" : null,
        model.series.map(({ name: key, label, style, values }) =>
          h("div", {}, swatch(key, style), h("span", { class: "grow" }, label), h("b", {}, text(model, values[bucket])))))),
  ]);
}

const at = (event) => (event.target instanceof Element ? event.target.closest("svg.chart") : null);

function follow(event) {
  const drawing = at(event);
  for (const name of charts.keys()) {
    const other = document.querySelector(`svg.chart[data-chart="${name}"]`);
    if (other !== drawing && other !== document.activeElement && charts.get(name).bucket !== null) point(name, null);
  }
  if (!drawing) return;
  const { model } = charts.get(drawing.dataset.chart);
  const box = drawing.getBoundingClientRect();
  const across = ((event.clientX - box.left) / box.width) * model.width;
  const part = (across - EDGE.left) / (model.width - EDGE.left - EDGE.right);
  const bucket = Math.max(0, Math.min(model.buckets - 1, Math.floor(part * model.buckets)));
  if (charts.get(drawing.dataset.chart).bucket !== bucket) point(drawing.dataset.chart, bucket);
}

document.addEventListener("pointermove", follow);
document.addEventListener("pointerdown", follow);
document.addEventListener("focusin", (event) => {
  const drawing = at(event);
  if (!drawing) return;
  const view = charts.get(drawing.dataset.chart);
  if (view.bucket === null) point(drawing.dataset.chart, view.model.buckets - 1);
});
document.addEventListener("focusout", (event) => at(event) && point(at(event).dataset.chart, null));
document.addEventListener("keydown", (event) => {
  const drawing = at(event);
  if (!drawing || event.ctrlKey || event.metaKey || event.altKey) return;
  const { model, bucket } = charts.get(drawing.dataset.chart);
  const last = model.buckets - 1;
  const current = bucket ?? last;
  const wanted = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: last, Escape: null }[event.key];
  if (wanted === undefined) return;
  event.preventDefault();
  point(drawing.dataset.chart, wanted === null ? null : Math.max(0, Math.min(last, wanted)));
});
