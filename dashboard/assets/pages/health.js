// The result of queue.health(): problems, and what to do about them.

import { h } from "../dom.js";
import { badge, heading, link, part, problem, when } from "../parts.js";

export const label = "Health";
export const title = () => "Health";

const check = (row) => h("li", { class: row.status },
  h("div", { class: "event" }, badge(row.status), h("b", {}, row.name)),
  h("p", { class: "detail" }, row.detail), row.hint ? h("p", { class: "hint" }, row.hint) : null);

// The problems, for the first page: the worst first, and not so many that they hide the queues.
const MOST = 3;
export function troubles(part) {
  // Without an answer it is not known whether there are problems.
  if (part.value === null && part.trouble) {
    return h("section", { class: "troubles", "aria-label": "Trouble" }, h("p", {}, "The checks of ", link("health", {}, "Health"), " cannot be shown."), problem(part.trouble.problem));
  }
  const wrong = (part.value || []).filter((row) => row.status !== "ok");
  if (!wrong.length) return null;
  wrong.sort((a, b) => (b.status === "critical") - (a.status === "critical"));
  const more = wrong.length > MOST ? h("p", { class: "more" }, link("health", {}, `${wrong.length - MOST} more`)) : null;
  return h("section", { class: "troubles", "aria-label": "Trouble" },
    h("ul", { class: "checks" }, wrong.slice(0, MOST).map(check)), more);
}

export function render({ overview }) {
  return [
    heading("Health", overview.health.at ? h("span", { class: "dim" }, "checked ", when(overview.health.at)) : null),
    part(overview.health, (rows) => h("ul", { class: "checks" },
      [...rows].sort((a, b) => (a.status === "ok") - (b.status === "ok")).map(check))),
  ];
}
