// The form that creates or changes a schedule.

import { children, h } from "./dom.js";
import { act, get, hidden, Problem } from "./api.js";
import { field, fill, note } from "./forms.js";
import { clock } from "./format.js";

const COMMON = [
  ["* * * * *", "every minute"], ["*/5 * * * *", "every 5 minutes"], ["*/10 * * * *", "every 10 minutes"],
  ["*/15 * * * *", "every 15 minutes"], ["*/30 * * * *", "every 30 minutes"], ["0 * * * *", "every hour"],
  ["0 */2 * * *", "every 2 hours"], ["0 */6 * * *", "every 6 hours"], ["0 */12 * * *", "every 12 hours"],
  ["0 3 * * *", "every day"], ["0 9 * * MON-FRI", "every working day"], ["0 3 * * MON", "every Monday"], ["0 3 1 * *", "every month"],
];
const DELAY = 300;

// name is empty for a new schedule.
export async function open(name, again) {
  const [overview, known] = await Promise.all([get("overview"), name ? get("schedule", { name }) : null]);
  const queues = (overview.queues.value?.queues || []).map((row) => row.queue);
  const { cron = "0 3 * * *", timezone = "UTC", queue = queues[0], missed_runs = "once", options = {}, headers, payload = "{}" } = known || {};
  const option = (key, label, more) => field(key, label, options[key] ?? "", more);
  const zones = h("datalist", { id: "zones" }, ["UTC", ...Intl.supportedValuesOf("timeZone")].map((zone) => h("option", { value: zone })));
  const runs = h("div", { class: "whole runs", role: "status" });
  const form = fill({
    title: name ? `Edit the schedule ${name}` : "New schedule", verb: name ? "Save" : "Create",
    fields: [
      field("target", "Name", name, { readonly: Boolean(name), required: true }),
      field("queue", "Queue", queue, { options: queues.map((each) => [each, each]) }),
      field("cron", "Cron expression", cron, { required: true, class: "code" }),
      field("common", "Or one of these", "", { options: [["", "choose…"], ...COMMON] }),
      field("timezone", "Time zone", timezone, { list: "zones", required: true }), zones,
      option("kind", "Kind"), runs,
      hidden() ? h("p", { class: "dim whole" }, "Payload and headers are hidden. They stay as they are.")
        : field("payload", "Payload, as JSON", payload, { lines: 4 }),
      h("details", { class: "whole" }, h("summary", {}, "More options"), h("div", { class: "fields" },
        field("missed_runs", "If runs were missed", missed_runs, { options: [["once", "run once"], ["skip", "skip them"], ["all", "run each"]] }),
        option("priority", "Priority", { inputmode: "numeric", placeholder: "0" }),
        option("delay", "Delay", { placeholder: "none" }), option("max_attempts", "Attempts", { inputmode: "numeric", placeholder: "as the queue" }),
        option("key", "Key"),
        field("on_duplicate", "If the key is taken", options.on_duplicate === "skip" ? "" : options.on_duplicate, {
          options: [["", "skip"], ["replace", "replace"], ["reschedule", "reschedule"], ["error", "error"]],
        }),
        option("group_key", "Group"), option("weight", "Weight", { inputmode: "numeric", placeholder: "1" }),
        option("lease", "Lease", { placeholder: "as the queue" }), option("timeout", "Timeout", { placeholder: "as the queue" }),
        option("ttl", "Time to start", { placeholder: "as the queue" }),
        hidden() ? null : field("headers", "Headers, as a JSON object", headers ?? "", { lines: 2 }))),
    ],
    send: async ({ common, ...values }) => {
      await act({ action: name ? "change_schedule" : "create_schedule", ...values });
      note("good", `The schedule ${values.target} is saved`);
      again();
    },
  });
  const value = (part) => form.elements.namedItem(part);
  let timer = 0;
  const preview = () => { clearTimeout(timer); timer = setTimeout(() => show(runs, value("cron").value, value("timezone").value), DELAY); };
  value("cron").addEventListener("input", preview);
  value("timezone").addEventListener("input", preview);
  value("common").addEventListener("change", () => {
    if (value("common").value) value("cron").value = value("common").value;
    preview();
  });
  show(runs, cron, timezone);
}

// The next five runs, as the server computes them, or why there are none.
async function show(element, cron, timezone) {
  element.dataset.asked = `${cron} ${timezone}`;
  const asked = element.dataset.asked;
  let content;
  try {
    const next = await get("schedule_preview", { cron, timezone });
    content = [h("span", { class: "dim" }, "Next runs, in the browser's time zone: "), next.map((time) => h("span", { class: "planned" }, clock(time, true)))];
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    content = [h("span", { class: "bad" }, error.message), " ", error.detail, " ", h("span", { class: "dim" }, error.hint)];
  }
  // A later question may have been answered first.
  if (element.dataset.asked === asked) children(element, content);
}
