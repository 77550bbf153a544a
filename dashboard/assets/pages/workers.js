// The workers: those that hold leases, those that wait for a task, and those that have completed one lately.

import { h } from "../dom.js";
import { get } from "../api.js";
import { counted, dim, empty, heading, lease, link, named, number, part, problem, queueLink, table, taskLink, when } from "../parts.js";
import { count, span, now } from "../format.js";

export const label = "Workers";
export const title = () => "Workers";

// If this is refused, for example because the role may not see tasks, the leases and the waits are shown nevertheless.
export const load = () => get("workers").catch((error) => (error.unreachable ? Promise.reject(error) : { refused: error }));

// How many tasks of a worker are shown, and how many workers the overview has at most.
const SHOWN = 3;
const MOST = 1000;

// One row for each name, the dead first and then those that have worked the longest.
function gather(leases, data) {
  const workers = new Map();
  const of = (name) => {
    if (!workers.has(name)) {
      workers.set(name, { name, running: 0, overdue: 0, waiting: 0, since: null, lease: null, queues: [], tasks: [], done: 0, beat: null });
    }
    return workers.get(name);
  };
  const first = (a, b) => (a === null || (b !== null && b < a) ? b : a);
  const beat = (worker, time) => { worker.beat = Math.max(worker.beat ?? time, time); };
  for (const row of leases) {
    const worker = of(row.worker);
    worker.running += row.running;
    worker.overdue += row.overdue;
    worker.since = first(worker.since, row.since);
    worker.lease = first(worker.lease, row.lease);
    if (!row.waiting) continue;
    worker.waiting += row.waiting;
    worker.queues.push(row.queue);
  }
  for (const task of data.tasks || []) {
    const worker = of(task.worker);
    worker.tasks.push(task);
    beat(worker, task.beat);
  }
  for (const { worker: name, tasks, last } of data.done || []) {
    const worker = of(name);
    worker.done = tasks;
    beat(worker, last);
  }
  const rank = ({ name, since }) => [since ?? Infinity, name || ""];
  return [...workers.values()].map((worker) => ({ ...worker, state: state(worker) })).sort((a, b) =>
    (b.state === "probably dead") - (a.state === "probably dead") || rank(a)[0] - rank(b)[0] || rank(a)[1].localeCompare(rank(b)[1]));
}

function state({ running, tasks, overdue, waiting }) {
  // The overview can be older than the tasks.
  if (running && overdue === running && !waiting) return "probably dead";
  if (running || tasks.length) return "working";
  return waiting ? "waiting" : "idle";
}

const COLOURS = { "probably dead": "critical", working: "running", waiting: "waiting", idle: "" };
const MEANING = { "probably dead": "all its leases have expired, and it does not wait for a task" };

const work = (task) => h("div", { class: "work", "data-key": task.id }, taskLink(task.id),
  h("span", { class: "dim" }, ` ${task.kind || task.queue} for ${span(now() - task.claimed)}`),
  task.progress ? h("code", { class: "progress", title: task.progress }, task.progress) : null);

function works(worker) {
  if (!worker.running && !worker.tasks.length) return dim();
  const more = Math.max(worker.running, worker.tasks.length) - Math.min(worker.tasks.length, SHOWN);
  return [worker.tasks.slice(0, SHOWN).map(work), more > 0
    ? h("div", {}, link("tasks", { state: "running", worker: worker.name }, `${count(more)} ${worker.tasks.length ? "more" : "tasks"}`)) : null];
}

export function render({ overview, data }) {
  const columns = [
    ["Worker", (row) => (row.name ? named(row.name) : dim("without a name")), "main"],
    ["State", (row) => h("span", { class: `badge ${COLOURS[row.state]}`, title: MEANING[row.state] }, row.state), "short"],
    ["Works on", works, "wide"],
    ["Lease ends", (row) => lease(row.lease), "number"],
    ["Overdue", (row) => number(row.overdue, "bad"), "number"],
    ["Waits for", (row) => (row.queues.length ? h("span", { title: `${row.waiting} sessions` }, row.queues.map((name) => [queueLink(name), " "])) : dim())],
    ...(data.refused ? [] : [["Completed", (row) => number(row.done), "number"], ["Heartbeat", (row) => when(row.beat), "number"]]),
  ];
  return [
    part(overview.workers, (leases) => {
      const rows = gather(leases, data);
      const dead = rows.filter((row) => row.state === "probably dead").length;
      return [
        heading("Workers", h("span", { class: "dim" }, count(rows.length)),
          dead ? h("span", { class: "badge critical" }, `${count(dead)} probably dead`) : null),
        counted(leases),
        rows.length ? table("Workers", columns, rows, (row) => JSON.stringify(row.name))
          : empty("No workers", "No worker holds a lease, waits for a task or has completed one lately. If tasks are due, the workers are down or the queues are paused."),
        leases.length >= MOST ? h("p", { class: "dim" }, `Only the first ${count(MOST)} pairs of worker and queue are shown.`) : null,
        data.refused ? problem(data.refused)
          : h("p", { class: "dim" }, `Completed: in the last ${data.minutes} minutes, among the newest ${count(data.history)} tasks in the history. A worker shows a heartbeat when it claims, extends or completes a task.`),
        h("p", { class: "dim" }, "The SQL-only edition does not show workers that wait."),
      ];
    }),
  ];
}
