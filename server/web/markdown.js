// Show GitHub's Markdown, with guessed parts marked. A model's text never becomes HTML: all nodes are made by
// createElement and as text nodes.

import { coloured } from "/web/code.js";
import { copy, element } from "/web/dom.js";
import { parse } from "/web/vendor/markdown.js";

const DEEPEST = /^[ \t]*(?:[>*+-][ \t]?|\d{1,9}[.)][ \t]?){40}|[[*_]{500}/m; // nesting that nobody writes, and that takes long to parse
const DEFINITION = /^[ \t>*+\-\d.)]*\[[^\]]{1,999}\]:/m; // definition of a link or footnote, which may change earlier text
const SAFE = /^(?:https?:|mailto:)/i;
const shown = new WeakMap(); // text shown by each element
let nextId = 0; // id of the next footnote: several replies on a page may have footnotes

// Replace the content of `target` by this text. runs: [{start, end, label, colour}] in order, offsets in the text.
// A later call with a longer text changes only the parts that differ, so that a selection stays.
export function render(target, text, runs = []) {
  let state = shown.get(target);
  if (!state) {
    target.replaceChildren();
    state = { text: "", tree: null, keys: [], id: `f${nextId++}` };
    shown.set(target, state);
  }
  const blocks = read(state, text);
  const context = new Context(text, runs, blocks, state.id);
  const keys = [];
  blocks.filter(visible).forEach((block, i) => {
    const [start, end] = span(block);
    const key = `${block.type}:${text.slice(start, end)}:${context.within(start, end)}:${context.defined}`;
    keys.push(key);
    if (state.keys[i] === key && target.childNodes[i]) return;
    put(target, i, context.block(block));
  });
  const notes = context.footnotes();
  if (notes) {
    keys.push("");
    put(target, keys.length - 1, notes);
  }
  while (target.childNodes.length > keys.length) target.lastChild.remove();
  state.keys = keys;
}

function visible({ type }) {
  return type !== "definition" && type !== "footnoteDefinition";
}

function put(target, i, node) {
  const old = target.childNodes[i];
  if (!old) target.append(node);
  else if (!patch(old, node)) old.replaceWith(node);
}

// Change `old` to equal `node`, keeping as much of it as possible. Return false if it must be replaced.
function patch(old, node) {
  if (old.nodeType !== node.nodeType || old.nodeName !== node.nodeName) return false;
  if (old.nodeType === Node.TEXT_NODE) {
    if (node.data.startsWith(old.data)) old.appendData(node.data.slice(old.data.length));
    else old.data = node.data;
    return true;
  }
  for (const { name } of [...old.attributes]) if (!node.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const children = [...node.childNodes];
  children.forEach((child, i) => put(old, i, child));
  while (old.childNodes.length > children.length) old.lastChild.remove();
  return true;
}

// Return the blocks of a text. In a growing text, parse only the blocks again that later text may change.
function read(state, text) {
  const grows = state.tree && text.startsWith(state.text) && !DEFINITION.test(text);
  const n = grows ? settled(state) : 0;
  const start = n ? state.text.lastIndexOf("\n", span(state.tree.children[n])[0] - 1) + 1 : 0;
  const tree = DEEPEST.test(text) ? plain(text) : parsed(text.slice(start));
  if (n) {
    for (const block of tree.children) shift(block, start);
    tree.children.unshift(...state.tree.children.slice(0, n));
  }
  Object.assign(state, { text, tree });
  return tree.children;
}

// Return how many blocks no later text can change: those before an empty line before the block that the last line
// may belong to. For example, an item's number is a separate paragraph until its dot comes.
function settled({ text, tree: { children } }) {
  const line = text.lastIndexOf("\n") + 1;
  let n = children.findLastIndex((block) => span(block)[0] < line);
  while (n > 0 && !/\n\s*\n/.test(text.slice(span(children[n - 1])[1], span(children[n])[0]))) n--;
  return Math.max(n, 0);
}

function plain(text) {
  const at = { start: { offset: 0 }, end: { offset: text.length } };
  return { type: "root", children: [{ type: "paragraph", position: at, children: [{ type: "text", value: text, position: at }] }] };
}

function parsed(text) {
  try {
    const tree = withMaths(text, parse(text));
    place(tree, text);
    return tree;
  } catch {
    return plain(text); // deeper than the browser's stack
  }
}

const MATHS = /\\\((?!\s*\\\))((?:(?!\n\s*\n)[^$])*?)\\\)|\\\[(?!\s*\\\])((?:(?!\n\s*\n)[^$])*?)\\\]/g; // \( \) or \[ \]

// Return the tree with \( \) and \[ \] read as maths: dollar signs, which take as many characters, replace them
// where that gives maths. Code is not changed.
function withMaths(text, tree) {
  const inside = (...types) => {
    const found = [];
    visit(tree, (node) => types.includes(node.type) && found.push(span(node)));
    return (at) => found.some(([start, end]) => at >= start && at < end);
  };
  const marked = (where) => text.replace(MATHS, (whole, inline, block, at) => (where(at) ? "$$" + (inline ?? block) + "$$" : whole));
  const code = inside("code", "inlineCode", "html");
  const tried = marked((at) => !code(at));
  if (tried === text) return tree;
  tree = parse(tried);
  const whole = marked(inside("math", "inlineMath"));
  return whole === tried ? tree : parse(whole);
}

// Find the positions of bare addresses, which the parser does not report.
function place(node, text) {
  let [at] = span(node);
  for (const child of node.children ?? []) {
    if (!child.position) {
      const value = child.value ?? child.children[0].value;
      const start = Math.max(at, text.indexOf(value, at));
      child.position = { start: { offset: start }, end: { offset: start + value.length } };
    }
    place(child, text);
    [, at] = span(child);
  }
}

function visit(node, see) {
  see(node);
  for (const child of node.children ?? []) visit(child, see);
}

function span(node) {
  return [node.position.start.offset, node.position.end.offset];
}

function shift(block, by) {
  visit(block, ({ position }) => {
    position.start.offset += by;
    position.end.offset += by;
  });
}

// Return the offsets in source[start, end) of the characters of a value parsed from there. Escapes, character
// references and the markers of outer blocks are in the source only.
function offsets(source, value, start, end) {
  const found = [];
  let at = start;
  for (const character of value) {
    let next = source.indexOf(character, at);
    const reference = source[at] === "&" && /^&(?:#\d+|#[xX][\da-fA-F]+|\w+);/.exec(source.slice(at, at + 40));
    if (reference && (next !== at || reference[0] === "&amp;")) {
      found.push(...Array(character.length).fill(at));
      at += reference[0].length;
      continue;
    }
    if (next < 0 || next >= end) next = Math.min(at, end - 1); // a tab that became spaces, say
    else at = next + character.length;
    for (let i = 0; i < character.length; i++) found.push(next + i);
  }
  return found;
}

class Context {
  constructor(source, runs, blocks, id) {
    this.source = source;
    this.runs = runs;
    this.id = id;
    this.definitions = new Map();
    this.notes = new Map();
    this.cited = [];
    for (const block of blocks) {
      visit(block, (node) => {
        const kept = node.type === "definition" ? this.definitions : node.type === "footnoteDefinition" ? this.notes : null;
        if (kept && !kept.has(node.identifier)) kept.set(node.identifier, node);
      });
    }
    for (const block of blocks) {
      visit(block, ({ type, identifier }) => {
        const note = type === "footnoteReference" && this.notes.get(identifier);
        if (note && !this.cited.includes(note)) this.cited.push(note);
      });
    }
    this.defined = [...[...this.definitions].map(([name, node]) => `${name} ${node.url}`), ...this.notes.keys()].join();
  }

  // The runs that overlap these offsets.
  guessed(start, end) {
    return this.runs.filter((run) => run.start < end && run.end > start);
  }

  // A key of the guessed parts between these offsets.
  within(start, end) {
    return this.guessed(start, end).flatMap((run) => [run.start - start, run.end - start, run.colour]).join();
  }

  // Text nodes of a value parsed from source[start, end), with guessed parts marked.
  text(value, [start, end]) {
    if (!this.guessed(start, end).length) return [value];
    return this.marked([[value, ""]], offsets(this.source, value, start, end));
  }

  // pieces: [text, class]; their characters have these offsets.
  marked(pieces, at) {
    const nodes = [];
    let i = 0;
    let run = this.runs.findIndex(({ end }) => end > (at[0] ?? 0));
    for (const [text, kind] of pieces) {
      const into = kind ? element("span", { class: kind }) : null;
      const parts = [];
      for (let from = 0; from < text.length; ) {
        while (run >= 0 && run < this.runs.length && this.runs[run].end <= at[i + from]) run++;
        const here = run >= 0 ? this.runs[run] : undefined;
        const guessed = here && at[i + from] >= here.start;
        let to = from + 1;
        while (to < text.length && (guessed ? at[i + to] < here.end : !here || at[i + to] < here.start)) to++;
        const part = text.slice(from, to);
        parts.push(guessed ? element("span", { class: `guess by${here.colour}`, title: `guessed by ${here.label}` }, part) : part);
        from = to;
      }
      i += text.length;
      if (into) into.append(...parts);
      nodes.push(...(into ? [into] : parts));
    }
    return nodes;
  }

  block(node, tight = false) {
    switch (node.type) {
      case "paragraph": return tight ? this.fragment(node) : element("p", {}, ...this.inline(node));
      case "heading": return element(`h${node.depth}`, {}, ...this.inline(node));
      case "thematicBreak": return element("hr");
      case "blockquote": return element("blockquote", {}, ...this.blocks(node));
      case "list": return this.list(node);
      case "table": return this.table(node);
      case "code": return this.code(node);
      case "math": return element("pre", { class: "math", tabindex: "0" }, element("code", {}, ...this.text(node.value, this.inside(node))));
      case "html": return element("p", { class: "raw" }, ...this.text(node.value, span(node)));
      default: return this.fragment({ children: [node] });
    }
  }

  blocks(node, tight = false) {
    return node.children.filter(visible).map((child) => this.block(child, tight));
  }

  fragment(node) {
    const fragment = document.createDocumentFragment();
    fragment.append(...this.inline(node));
    return fragment;
  }

  list(node) {
    const loose = node.spread || node.children.some((item) => item.spread);
    const items = node.children.map((item) => {
      const li = element("li", {}, ...this.blocks(item, !loose));
      if (item.checked !== null && item.checked !== undefined) {
        li.className = "task";
        const box = element("input", { type: "checkbox", disabled: "", "aria-label": item.checked ? "done" : "to do" });
        if (item.checked) box.setAttribute("checked", "");
        (loose && li.firstChild?.nodeName === "P" ? li.firstChild : li).prepend(box, " ");
      }
      return li;
    });
    const start = node.ordered && node.start !== 1 ? { start: node.start } : {};
    return element(node.ordered ? "ol" : "ul", start, ...items);
  }

  table(node) {
    const row = (cells, tag) => element("tr", {}, ...cells.map((cell, i) => {
      const align = node.align[i] ? { align: node.align[i] } : {};
      return element(tag, align, ...this.inline(cell));
    }));
    const [head, ...rows] = node.children;
    const width = head.children.length;
    const filled = rows.map(({ children }) => [...children, ...Array(Math.max(0, width - children.length)).fill({ children: [] })].slice(0, width));
    const table = element("table", {}, element("thead", {}, row(head.children, "th")));
    if (rows.length) table.append(element("tbody", {}, ...filled.map((cells) => row(cells, "td"))));
    return element("div", { class: "table", role: "region", "aria-label": "Table", tabindex: "0" }, table);
  }

  // The position of a fenced or indented block's text in the source.
  inside(node) {
    const [start, end] = span(node);
    const fenced = /^(?:`{3}|~{3}|\$\$)/.test(this.source.slice(start, start + 3));
    const first = fenced ? this.source.indexOf("\n", start) + 1 : start;
    return [first > start && first <= end ? first : start, end];
  }

  code(node) {
    const language = (node.lang ?? "").toLowerCase();
    const pieces = coloured(node.value, language);
    const [start, end] = this.inside(node);
    const nodes = this.marked(pieces, this.guessed(start, end).length ? offsets(this.source, node.value, start, end) : []);
    const code = element("code", language ? { class: `language-${language.replace(/[^\w+#-]/g, "")}` } : {}, ...nodes);
    const copy = element("button", { type: "button", class: "copy", "aria-label": "Copy this code" }, "Copy");
    const bar = element("div", { class: "bar" }, element("span", {}, node.lang ?? ""), copy);
    return element("div", { class: "code" }, bar, element("pre", { tabindex: "0" }, code));
  }

  inline(node) {
    return (node.children ?? []).flatMap((child) => this.phrase(child));
  }

  phrase(node) {
    switch (node.type) {
      case "text": return this.text(node.value, span(node));
      case "emphasis": return [element("em", {}, ...this.inline(node))];
      case "strong": return [element("strong", {}, ...this.inline(node))];
      case "delete": return [element("del", {}, ...this.inline(node))];
      case "inlineCode": return [element("code", {}, ...this.quoted(node))];
      case "inlineMath": return [element("code", { class: "math" }, ...this.quoted(node))];
      case "break": return [element("br"), "\n"];
      case "html": return this.text(node.value, span(node));
      case "link": return [this.link(node.url, node.title, this.inline(node))];
      case "image": return [this.link(node.url, node.title, this.picture(node))];
      case "linkReference":
      case "imageReference": {
        const found = this.definitions.get(node.identifier);
        const inside = node.type === "linkReference" ? this.inline(node) : this.picture(node);
        return found ? [this.link(found.url, found.title, inside)] : this.text(this.source.slice(...span(node)), span(node));
      }
      case "footnoteReference": return [this.cite(node)];
      default: return node.children ? this.inline(node) : node.value ? this.text(node.value, span(node)) : [];
    }
  }

  // The text between the marks of `code`.
  quoted(node) {
    const [start, end] = span(node);
    const marks = /^[`$]+/.exec(this.source.slice(start, end))?.[0].length ?? 0;
    return this.text(node.value, [start + marks, end]);
  }

  // Images are not fetched: a model must not make the browser send requests.
  picture(node) {
    return this.text(node.alt || node.url || "image", span(node));
  }

  link(url, title, children) {
    if (!SAFE.test(url)) return element("span", {}, ...children);
    const attributes = { href: url, target: "_blank", rel: "noopener noreferrer" };
    return element("a", title ? { ...attributes, title } : attributes, ...children);
  }

  cite(node) {
    const note = this.notes.get(node.identifier);
    if (!note) return document.createTextNode(this.source.slice(...span(node)));
    const n = this.cited.indexOf(note) + 1;
    return element("sup", {}, element("a", { href: `#${this.id}-${n}`, "aria-label": `Footnote ${n}` }, String(n)));
  }

  footnotes() {
    if (!this.cited.length) return null;
    const items = this.cited.map((note, i) => element("li", { id: `${this.id}-${i + 1}` }, ...this.blocks(note)));
    return element("section", { class: "footnotes", "aria-label": "Footnotes" }, element("ol", {}, ...items));
  }
}

// One listener for the copy buttons of all code.
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button.copy");
  const code = button?.closest(".code")?.querySelector("code");
  if (code) copy(button, code.textContent);
});
