// The filter of a list of tasks: its form, its part of the address, and its words.

import { h } from "./dom.js";
import { hidden } from "./api.js";
import { address } from "./parts.js";
import { clock } from "./format.js";

const TIMES = ["pushed_from", "pushed_to", "ended_from", "ended_to"];
const WORDS = {
  queue: "queue", state: "state", kind: "kind", key: "key", group: "group", worker: "worker", error: "last error",
  text: "text", payload: "payload contains", pushed_from: "pushed after", pushed_to: "pushed before",
  ended_from: "ended from", ended_to: "ended before",
};
// In the form at the top, and not among the others.
const PLAIN = ["queue", "state", "text"];
const HINTS = { key: "order-*", group: "customer-9", error: "*timeout*", payload: '{"tenant": 7}' };

// The parameters of an address that are parts of the filter, without empty ones.
export const filterOf = (parameters) => Object.fromEntries(Object.keys(WORDS)
  .filter((name) => parameters[name]).map((name) => [name, parameters[name]]));

const others = (filter) => Object.keys(filter).filter((name) => !PLAIN.includes(name));
const shown = (name, value) => (TIMES.includes(name) ? clock(Number(value), true) : value);

// The filter in words: pairs of what and which.
export function words(filter) {
  const pairs = Object.entries(filter).filter(([name]) => name !== "state")
    .map(([name, value]) => [WORDS[name], shown(name, value)]);
  const state = { live: "not finished", queued: "queued, also those blocked in their group" }[filter.state] || filter.state;
  return [["state", state], ...pairs];
}

export function form(overview, page, parameters) {
  const filter = filterOf(parameters);
  const queues = (overview.queues.value?.queues || []).map((row) => row.queue);
  if (filter.queue && !queues.includes(filter.queue)) queues.push(filter.queue);
  const given = others(filter).length;
  return h("form", { "data-search": true, "data-keep": true, "data-page": page, "data-state": parameters.state || "", role: "search", class: "search" },
    h("input", {
      type: "search", name: "text", value: filter.text || "", maxlength: 200, "aria-label": "Id, or text",
      placeholder: hidden() ? "Id, kind, key, group, worker or error" : "Id, kind, key, group, worker, error, or text in the payload",
    }),
    h("select", { name: "queue", "aria-label": "Queue" }, h("option", { value: "" }, "every queue"),
      queues.map((name) => h("option", { value: name, selected: name === filter.queue }, name))),
    h("button", { class: "button" }, "Search"),
    h("details", { class: "filters", open: given > 0 },
      h("summary", {}, "Filters"),
      h("div", { class: "fields" }, Object.keys(WORDS).filter((name) => !PLAIN.includes(name) && !(name === "payload" && hidden()))
        .map((name) => h("label", { class: name === "payload" ? "whole" : null }, WORDS[name], input(name, filter[name])))),
      h("p", { class: "dim" }, "In key, group and error, * stands for any text. Payloads are compared as JSON."),
      h("button", { class: "button primary" }, "Apply")));
}

function input(name, value = "") {
  if (TIMES.includes(name)) {
    return h("input", { name, type: "datetime-local", step: 1, value: value && clock(Number(value), true).replace(" ", "T") });
  }
  const field = h("input", { name, value, maxlength: 500, autocomplete: "off", placeholder: HINTS[name], class: name === "payload" ? "code" : null });
  field.addEventListener("input", () => field.setCustomValidity(""));
  return field;
}

// Opens the page for the values of the form.
export function search(element) {
  const { page, state } = element.dataset;
  const filter = Object.fromEntries(new FormData(element));
  for (const name of Object.keys(filter)) filter[name] = filter[name].trim();
  for (const name of TIMES) if (filter[name]) filter[name] = String(new Date(filter[name]).getTime() / 1000);
  if (filter.payload && !isJson(filter.payload)) {
    const field = element.elements.namedItem("payload");
    field.setCustomValidity("This is not JSON. Strings need double quotes.");
    field.reportValidity();
    return;
  }
  location.hash = address(page, { state, ...filter });
}

function isJson(text) {
  try { JSON.parse(text); return true; } catch { return false; }
}

// The parts of the filter, each with a link that removes it.
export function chips(page, parameters) {
  const filter = filterOf(parameters);
  const state = page === "dead" ? "" : filter.state;
  const given = others(filter);
  return given.length ? h("p", { class: "chips" }, given.map((name) => h("a", {
    class: "chip", "data-key": name, href: address(page, { ...filter, state, [name]: "" }), "aria-label": `Remove the filter ${WORDS[name]}`,
  }, h("span", { class: "dim" }, WORDS[name]), " ", shown(name, filter[name]), " ×"))) : null;
}
