// Code with the colours of its language, as a list of pieces: a string and its classes.

import hljs from "/web/vendor/highlight.js";

const LONGEST = 50_000; // maximum characters to colour: more would block the page

// An emitter for highlight.js that collects pieces instead of making HTML.
class Pieces {
  constructor() {
    this.found = [];
    this.scopes = [];
  }
  addText(text) {
    if (text) this.found.push([text, this.scopes.at(-1) ?? ""]);
  }
  startScope(scope) {
    this.scopes.push(`hljs-${scope.split(".")[0]}`);
  }
  endScope() {
    this.scopes.pop();
  }
  __addSublanguage(other) {
    this.found.push(...other.found);
  }
  openNode(scope) {
    this.startScope(scope);
  }
  closeNode() {
    this.endScope();
  }
  closeAllNodes() {}
  finalize() {}
  toHTML() {
    return "";
  }
}

hljs.configure({ __emitter: Pieces });

// Return [[text, class], …]; the texts joined are the code.
export function coloured(code, language) {
  if (!language || code.length > LONGEST || !hljs.getLanguage(language)) return [[code, ""]];
  const { found } = hljs.highlight(code, { language, ignoreIllegals: true })._emitter;
  return found.map(([text]) => text).join("") === code ? found : [[code, ""]];
}
