// Schedules: their next runs, and their errors.

import { h } from "../dom.js";
import { badge, button, dim, empty, former, heading, named, part, queueLink, table, when } from "../parts.js";
import { ago, count, timetable } from "../format.js";

export const label = "Schedules";
export const title = () => "Schedules";

// How many schedules the overview has at most.
const MOST = 500;

function next(plan) {
  if (plan.paused !== null) return badge("paused");
  if (plan.next === null) return dim("never");
  return [when(plan.next), h("div", { class: "dim" }, timetable(plan.next))];
}

function after(plan) {
  const runs = (plan.runs || []).filter((run) => run > plan.next).slice(0, 3);
  return plan.paused === null && runs.length ? runs.map((run) => h("div", { class: "dim" }, timetable(run))) : dim();
}

export function render({ overview }) {
  const columns = [
    ["Schedule", (plan) => [named(plan.name), plan.error
      ? h("div", { class: "error", title: `${plan.error} (${ago(plan.error_at)})` }, `${plan.error}, ${ago(plan.error_at)}`) : null], "main"],
    ["Plan", (plan) => [h("code", {}, plan.cron), h("div", { class: "dim" }, plan.timezone)], "short"],
    ["Queue", (plan) => queueLink(plan.queue)],
    ["Next run", next, "short"],
    ["And then", after, "short"],
    ["Last run", (plan) => when(plan.last), "short"],
    [".Actions", (plan) => h("span", { class: "buttons" }, button("run_schedule", plan.name, "Run now"),
      plan.paused === null ? button("pause_schedule", plan.name, "Pause") : button("resume_schedule", plan.name, "Resume", { style: "primary" }),
      former("schedule", plan.name, "Edit…"), button("unschedule", plan.name, "Delete", { style: "danger" })), "act"],
  ];
  return [
    heading("Schedules", h("span", { class: "grow" }), former("schedule", "", "New schedule…")),
    part(overview.schedules, (plans) => (plans.length
      ? [table("Schedules", columns, plans, (plan) => plan.name),
         plans.length >= MOST ? h("p", { class: "dim" }, `Only the first ${count(MOST)} schedules are shown.`) : null, h("p", { class: "dim" }, "Times are in the browser's time zone.")]
      : empty("No schedule yet", "Create one: ", h("code", {}, "SELECT queue.schedule('report', '0 9 * * MON-FRI', 'mail')")))),
  ];
}
