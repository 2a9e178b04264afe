// Helpers that make elements, copy text and announce messages.

export const $ = (id) => document.getElementById(id);

// children: nodes and strings. on…: listeners.
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function button(text, onclick, attributes = {}) {
  return element("button", { type: "button", onclick, ...attributes }, text);
}

// Copy the text, and show on the button that it was copied.
export async function copy(node, text) {
  let said = "Copied";
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else if (!copied(text)) said = "Not allowed";
  } catch {
    said = "Not allowed";
  }
  node.textContent = said;
  setTimeout(() => (node.textContent = "Copy"), 1500);
}

// Over plain HTTP from another machine, this is the only way in which browsers let pages use the clipboard.
function copied(text) {
  const field = element("textarea", { class: "hidden" });
  const before = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus();
  return done;
}

// Show a message, also to screen readers. undo: reverts the action.
export function say(text, undo) {
  const box = $("said");
  box.replaceChildren(text);
  if (undo) box.append(" ", button("Undo", () => { undo(); say(""); }));
  clearTimeout(box.timer);
  if (text) box.timer = setTimeout(() => box.replaceChildren(), 8000);
}

// Settings of this browser. If storage is switched off, they last as long as the page.
const kept = new Map();
export const local = {
  get(name) {
    try { return localStorage.getItem(`duo-${name}`) ?? kept.get(name) ?? ""; } catch { return kept.get(name) ?? ""; }
  },
  names(prefix) {
    const start = `duo-${prefix}`;
    try { return Object.keys(localStorage).filter((key) => key.startsWith(start)).map((key) => key.slice(4)); } catch { return []; }
  },
  set(name, value) {
    kept.set(name, value);
    try {
      if (value) localStorage.setItem(`duo-${name}`, value);
      else localStorage.removeItem(`duo-${name}`);
    } catch { /* it lasts as long as the page */ }
  },
};
