// The keys, and the dialog that lists them. They can be switched off, because speech input and shaky hands can press
// single keys by mistake.

import { h } from "./dom.js";

const PAGES = { q: "queues", a: "activity", t: "tasks", e: "failures", d: "dead", s: "schedules", w: "workers", h: "health" };
const LIST = [
  [["/"], "Search"], [["p"], "Pause or continue refreshing"], [["r"], "Refresh once"], [["c"], "Change the colours"],
  [["g", "q"], "Queues"], [["g", "a"], "Activity"], [["g", "t"], "Tasks"], [["g", "e"], "Errors"], [["g", "d"], "Dead letters"], [["g", "s"], "Schedules"],
  [["g", "w"], "Workers"], [["g", "h"], "Health"], [["?"], "This list"], [["Esc"], "Close a dialog"],
];
const CONTROLS = { p: "pause", r: "refresh", c: "theme", "?": "help" };

let going = false; // "g" was the last key
const off = () => localStorage.getItem("keys") === "off";

function build() {
  const box = h("input", { type: "checkbox", id: "keys-on", checked: !off() });
  box.addEventListener("change", () => localStorage.setItem("keys", box.checked ? "on" : "off"));
  const dialog = h("dialog", { id: "help", "aria-labelledby": "help-title" }, h("form", { method: "dialog" },
    h("h2", { id: "help-title" }, "Keys"),
    h("dl", { class: "keys" }, LIST.map(([keys, text]) => h("div", {},
      h("dt", {}, keys.map((key, i) => [i ? " then " : null, h("kbd", {}, key)])), h("dd", {}, text)))),
    h("p", { class: "choice" }, box, h("label", { for: "keys-on" }, "Use these keys in this browser")),
    h("div", { class: "buttons" }, h("button", { class: "button primary", autofocus: true }, "Close"))));
  document.body.append(dialog);
  return dialog;
}

export const openHelp = () => (document.getElementById("help") || build()).showModal();

function search() {
  const field = document.querySelector("main input[type=search]");
  if (field) field.focus();
  else location.hash = "#/tasks";
}

// `perform` presses a button of the bar.
export function keys(perform) {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, dialog");
    if (typing || off() || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    const page = going && PAGES[event.key];
    going = event.key === "g";
    if (page) location.hash = `#/${page}`;
    else if (event.key === "/") search();
    else if (CONTROLS[event.key]) perform(CONTROLS[event.key]);
    else return;
    event.preventDefault();
  });
}
