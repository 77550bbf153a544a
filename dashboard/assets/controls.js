// The buttons of the bar: pause the refreshing, refresh once, colours, and the list of keys.

import { children, h, svg } from "./dom.js";
import { openHelp } from "./keys.js";

const THEMES = ["system", "light", "dark"];
const ICONS = {
  pause: "M5 3v10M11 3v10", resume: "M5 3l8 5-8 5z", refresh: "M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3",
  system: "M2 3h12v8H2zM6 14h4", light: "M8 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6M8 1v1M8 14v1M1 8h1M14 8h1M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  dark: "M13 10A6 6 0 0 1 6 3a5.5 5.5 0 1 0 7 7z", help: "M5.5 6a2.5 2.5 0 1 1 2.5 2.5v1.5M8 13v.1",
};

let held = false;
export const paused = () => held;

const icon = (name) => svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
const control = (name, label, picture, more = {}) =>
  h("button", { type: "button", class: "control", "data-control": name, "aria-label": label, title: label, ...more }, icon(picture));

function draw() {
  const { theme } = document.documentElement.dataset;
  children(document.getElementById("controls"), [
    control("refresh", "Refresh once", "refresh", { hidden: !held }),
    control("pause", "Pause refreshing", held ? "resume" : "pause", { "aria-pressed": String(held) }),
    control("theme", `Colours: ${theme}`, theme),
    control("help", "Keys", "help", { "aria-haspopup": "dialog" }),
  ]);
}

function turnTheme() {
  const root = document.documentElement;
  root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem("theme", root.dataset.theme);
}

// `look` refreshes the page.
export function controls(look) {
  const does = {
    refresh: look,
    pause: () => { held = !held; return look(); },
    theme: turnTheme,
    help: openHelp,
  };
  const perform = (name) => { does[name](); draw(); };
  document.getElementById("controls").addEventListener("click", (event) => {
    const pressed = event.target.closest("[data-control]");
    if (pressed) perform(pressed.dataset.control);
  });
  draw();
  return perform;
}
