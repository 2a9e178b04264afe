// Give the parser's inner names, which minifiers keep since they are also texts, two or three letters.
//
// A name is an inner one if it has a capital letter inside, as no word of HTML does, and neither the language, the
// browser's document, the tree nor the page knows it.

import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const WEB = new URL("../../server/web/", import.meta.url);
const FILE = new URL("vendor/markdown.js", WEB);
const NAME = /(?<![\w$])[a-z_]\w*[A-Z]\w*(?![\w$])/g;
const TREE = "footnoteDefinition footnoteReference imageReference inlineCode inlineMath linkReference listItem";
const known = new Set(`${TREE} referenceType tableCell tableRow thematicBreak createElement innerHTML textContent hName hProperties hChildren className lastIndex`.split(" "));
for (const one of Object.getOwnPropertyNames(globalThis)) {
  for (const owner of [globalThis, globalThis[one], globalThis[one]?.prototype]) {
    if (owner) for (const name of Object.getOwnPropertyNames(owner)) known.add(name);
  }
}
for (const name of readdirSync(WEB).filter((name) => name.endsWith(".js"))) {
  for (const [word] of readFileSync(new URL(name, WEB), "utf8").matchAll(/\w+/g)) known.add(word);
}

const text = readFileSync(FILE, "utf8");
const counts = new Map();
for (const [name] of text.matchAll(NAME)) if (!known.has(name)) counts.set(name, (counts.get(name) ?? 0) + 1);
const letters = [..."abcdefghijklmnopqrstuvwxyz"];
const free = [...letters, ...letters.flatMap((a) => letters.map((b) => a + b))].map((name) => `${name}$`);
const short = new Map();
for (const name of [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a))) {
  if (name.length > 3) short.set(name, free.shift());
}
if ([...short.values()].some((name) => !name || text.includes(name))) throw new Error("a short name is taken");
writeFileSync(FILE, text.replace(NAME, (name) => short.get(name) ?? name));
