// Dialogs with forms, and the messages after an action.

import { children, h } from "./dom.js";
import { Problem } from "./api.js";
import { problem } from "./parts.js";

// Opens the dialog. Returns how to close it; `closed` is called however it is closed.
export function open(content, { wide = false, closed = () => {} } = {}) {
  const dialog = document.getElementById("dialog");
  dialog.classList.toggle("wide", wide);
  dialog.replaceChildren(content);
  dialog.oncancel = null;
  dialog.onclose = () => { dialog.onclose = null; closed(); };
  dialog.showModal();
  // Another dialog may have been opened since.
  return () => { if (content.isConnected) dialog.close(); };
}

// A field with its label. more: the attributes of the input; options make it a list to choose from.
export function field(name, label, value = "", { options, lines, hint, ...more } = {}) {
  const attributes = { name, id: `field-${name}`, autocomplete: "off", ...more };
  const element = options
    ? h("select", attributes, options.map(([option, text]) => h("option", { value: option, selected: option === value }, text)))
    : lines ? h("textarea", { ...attributes, rows: lines, spellcheck: "false", class: "code" }, value)
      : h("input", { ...attributes, value });
  return h("label", { class: lines ? "whole" : null }, label, element, hint ? h("span", { class: "dim" }, hint) : null);
}

// A form in the dialog. If `send` fails, the error is shown in the form, and what was typed stays. If the form was closed
// meanwhile, the error is shown on the page.
export function fill({ title, verb, fields, send }) {
  const trouble = h("div", {});
  const submit = h("button", { class: "button primary", value: "yes" }, verb);
  const leave = h("button", { type: "button", class: "button", value: "no" }, "Leave it");
  const form = h("form", { method: "dialog", class: "filling" }, h("h2", { id: "dialog-title" }, title),
    h("div", { class: "fields" }, fields), trouble, h("div", { class: "buttons" }, leave, submit));
  let closed = false;
  const close = open(form, { wide: true, closed: () => { closed = true; } });
  leave.addEventListener("click", close);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      await send(Object.fromEntries(new FormData(form)));
      close();
    } catch (error) {
      if (closed) return caught(error);
      if (!(error instanceof Problem)) throw error;
      children(trouble, [problem(error)]);
      trouble.scrollIntoView({ block: "nearest" });
    } finally {
      submit.disabled = false;
    }
  });
  return form;
}

// Shows the error of a request on the page, if no form shows it.
export function caught(error) {
  if (!(error instanceof Problem)) throw error;
  note("wrong", problem(error));
}

export function note(kind, ...content) {
  const close = h("button", { type: "button", class: "close", "aria-label": "Dismiss" }, "×");
  const element = h("div", { class: `note ${kind}` }, h("div", {}, content), close);
  close.addEventListener("click", () => element.remove());
  document.getElementById("notes").replaceChildren(element);
  if (kind === "good") setTimeout(() => element.remove(), 8000);
}
