// Creates elements, and updates the existing ones. Data from the database becomes text or an attribute, never HTML.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...nodes(children));
  return element;
}

// Strings become text; null, undefined and false are left out.
export const nodes = (children) => children.flat(Infinity)
  .filter((child) => child !== null && child !== undefined && child !== false)
  .map((child) => (child instanceof Node ? child : document.createTextNode(child)));

// h("p", {class: "note"}, "text", h("b", {}, "more")): empty children are left out.
export const h = (name, attributes, ...children) => build(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => build(document.createElementNS(SVG, name), attributes, children);

const key = (node) => (node.dataset ? node.dataset.key : undefined);
const alike = (a, b) => a.nodeName === b.nodeName && key(a) === key(b);

// Changes as little as possible, so that focus, selection and open elements stay. The value of an element with the
// attribute data-keep belongs to the user.
export function morph(have, want) {
  if (have.nodeType === Node.TEXT_NODE) {
    if (have.data !== want.data) have.data = want.data;
    return;
  }
  if (have.hasAttribute("data-keep")) return;
  for (const { name } of [...have.attributes]) {
    if (!want.hasAttribute(name) && name !== "open") have.removeAttribute(name);
  }
  for (const { name, value } of want.attributes) {
    if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  }
  children(have, [...want.childNodes]);
}

export function children(parent, wanted) {
  const known = new Map([...parent.childNodes].map((node) => [key(node), node]));
  let at = parent.firstChild;
  for (const want of nodes(wanted)) {
    const keyed = key(want) !== undefined;
    const have = keyed ? known.get(key(want)) : at;
    if (!have || !alike(have, want)) {
      parent.insertBefore(want, at);
      continue;
    }
    if (have === at) at = at.nextSibling;
    else parent.insertBefore(have, at);
    morph(have, want);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
