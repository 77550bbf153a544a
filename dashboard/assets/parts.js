// The components that several pages use.

import { h, svg } from "./dom.js";
import { may } from "./api.js";
import { ago, clock, count, rate, short, span, now } from "./format.js";

export const link = (page, parameters, ...children) => h("a", { href: address(page, parameters) }, ...children);

export function address(page, parameters = {}) {
  const asked = Object.entries(parameters).filter(([, value]) => value);
  const query = asked.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  return `#/${page}${query ? `?${query}` : ""}`;
}

export const named = (text, more = "") => h("span", { class: `name ${more}`, title: text }, text);
export const queueLink = (name) => link("queue", { name }, named(name));
export const taskLink = (id) => link("task", { id }, h("span", { class: "id" }, id));
export const badge = (state) => h("span", { class: `badge ${state}` }, state);
export const dim = (text = "–") => h("span", { class: "dim" }, text);
export const number = (n, kind = "") => h("span", { class: n ? kind : "dim", title: count(n) }, short(n || 0));

export function when(time, text = ago) {
  if (time === null || time === undefined) return dim();
  if (!Number.isFinite(Number(time))) return h("span", {}, "never");
  return h("time", { datetime: new Date(time * 1000).toISOString(), title: clock(time, true) }, text(time));
}

// A button, shown only if actions are allowed. The actions are in actions.js.
export function button(action, target, label, more = {}) {
  if (!may()) return null;
  const { style = "", ...attributes } = more;
  return h("button", {
    type: "button", class: `button ${style}`, "data-action": action, "data-target": target,
    "aria-label": `${label} ${target}`, ...attributes,
  }, label);
}

// A button that opens a form, shown only if actions are allowed.
export const former = (form, target, label, style = "") => (may()
  ? h("button", { type: "button", class: `button ${style}`, "data-form": form, "data-target": target, "aria-label": `${label} ${target}` }, label) : null);

// A table that becomes cards on narrow screens, so each cell has its column's title, and each element its role, which
// the layout of cards would take away.
// columns: [title, cell(row), class]; a title that starts with "." is only for screen readers.
export function table(caption, columns, rows, keyOf, rowClass = () => null) {
  const title = ([text]) => text.replace(/^\./, "");
  const head = columns.map((column) => h("th", { scope: "col", role: "columnheader", class: column[2] },
    column[0].startsWith(".") ? h("span", { class: "hearable" }, title(column)) : title(column)));
  const body = rows.map((row) => h("tr", { role: "row", "data-key": keyOf(row), class: rowClass(row) },
    columns.map((column) => h("td", {
      role: "cell", class: column[2], "data-label": column[0].startsWith(".") ? null : title(column),
    }, h("div", { class: "cell" }, column[1](row))))));
  return h("div", { class: "scroll" }, h("table", { role: "table" }, h("caption", { class: "hearable" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)), h("tbody", { role: "rowgroup" }, body)));
}

export const empty = (title, ...text) => h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, ...text));
// The SQL-only edition counts many tasks only now and then.
export function counted(rows) {
  const time = Math.max(...rows.map((row) => row.counted_at ?? -Infinity));
  return Number.isFinite(time) ? h("p", { class: "dim counted" }, `Tasks as counted by queue.maintain() ${ago(time)}.`) : null;
}

export const heading = (title, ...beside) => h("div", { class: "heading" }, h("h1", {}, title), ...beside);

export function problem(said) {
  return h("div", { class: "problem", role: "alert" },
    h("p", {}, said.sqlstate ? h("code", { class: "sqlstate" }, said.sqlstate) : null, h("strong", {}, said.message)),
    said.detail ? h("p", {}, said.detail) : null, said.hint ? h("p", { class: "hint" }, said.hint) : null);
}

// A part of the overview: its rows, or why there are none.
export function part({ value, trouble }, show) {
  if (value !== null) return show(value);
  return trouble ? problem(trouble.problem) : h("p", { class: "dim pad" }, "Asking Postgres…");
}

// The curve of the last ten minutes. `which` is 0 for due tasks, 1 for completions per second.
export function curve(points, which, { width = 120, height = 28, large = false } = {}) {
  const values = (points || []).map((point) => (point ? point[which] : null));
  const seen = values.filter((value) => value !== null);
  const format = which === 0 ? short : rate;
  if (!seen.length) return svg("svg", { class: "curve", width, height, "aria-hidden": "true" });
  const top = Math.max(...seen, which === 0 ? 1 : 0.1);
  const x = (i) => (i / (values.length - 1)) * width;
  const y = (value) => height - 1.5 - (value / top) * (height - 3);
  const runs = [];
  let last = -Infinity;
  values.forEach((value, i) => {
    if (value === null) return;
    // While no page is open, only every second or third step is sampled.
    if (i - last > 3) runs.push([]);
    last = i;
    runs.at(-1).push(`${x(i).toFixed(1)},${y(value).toFixed(1)}`);
  });
  const ends = (run) => [run[0].split(",")[0], run.at(-1).split(",")[0]];
  const label = `${which === 0 ? "due" : "completed a second"}, last ten minutes: ` +
    `${format(seen[0])}, at most ${format(Math.max(...seen))}, now ${format(seen.at(-1))}`;
  return svg("svg", {
    class: `curve ${which === 0 ? "due" : "rate"} ${large ? "large" : ""}`, viewBox: `0 0 ${width} ${height}`,
    width, height, preserveAspectRatio: "none", role: "img", "aria-label": label,
  }, runs.map((run) => {
    const [from, to] = ends(run);
    return run.length === 1
      ? svg("circle", { cx: from, cy: run[0].split(",")[1], r: 1.2 })
      : [svg("polygon", { points: `${from},${height} ${run.join(" ")} ${to},${height}` }),
         svg("polyline", { points: run.join(" "), "vector-effect": "non-scaling-stroke" })];
  }));
}

// The sum of the curves of several queues.
export function total(curves) {
  const all = Object.values(curves.queues);
  if (!all.length) return [];
  return all[0].map((_, i) => all.reduce((sum, points) => {
    if (!points[i]) return sum;
    return [(sum ? sum[0] : 0) + points[i][0], (sum ? sum[1] : 0) + points[i][1]];
  }, null));
}

export const lease = (until) => until === null || until === undefined ? dim()
  : until < now() ? h("span", { class: "bad" }, `overdue ${span(now() - until)}`) : when(until);
