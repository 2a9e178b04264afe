#!/usr/bin/env bash
# untruncate-json 0.0.1, which closes JSON that was cut off, as a stream or a token limit cuts it.
# Expected: "as long as the input is the prefix of a valid JSON string", the output is valid JSON, Unicode escapes
#           included, as its documentation guarantees. A text that is complete stays as it is.
# Seen:     a letter written as `\u00e9`, as Python's json module writes all letters beyond ASCII, is taken for an
#           escape that goes on, so that the quotation mark behind it is no end of the string. From there on, strings
#           and what is between them change places: the complete `{"name": "caf\u00e9"}` gets `"}` at its end, and of
#           most cut texts the output is no JSON. With the letter in the middle of a word, all is well.
source "$(dirname "$0")/begin.sh"
from_npm untruncate-json@0.0.1
cat > close.cjs <<'JS'
const untruncate = require("untruncate-json").default;
const reads = (text) => {
  try {
    return JSON.parse(text) !== undefined;
  } catch {
    return false;
  }
};
const texts = {
  end: String.raw`{"name": "caf\u00e9", "tags": ["a, b", "c"], "place": {"city": "Rome"}}`,
  middle: String.raw`{"name": "caf\u00e9s", "tags": ["a, b", "c"], "place": {"city": "Rome"}}`,
};
const whole = untruncate(String.raw`{"name": "caf\u00e9"}`);
console.log(`untruncate-json 0.0.1 makes of {"name": "caf\\u00e9"}: ${whole}`);
if (whole !== String.raw`{"name": "caf\u00e9"}"}`) throw new Error("changed");
const wrong = {};
for (const [name, text] of Object.entries(texts)) {
  const after = text.indexOf(", ") + 1;
  const cuts = Array.from({ length: text.length - after + 1 }, (_, i) => text.slice(0, after + i));
  wrong[name] = cuts.filter((cut) => !reads(untruncate(cut))).length;
  console.log(`the letter at the ${name} of a word: ${wrong[name]} of ${cuts.length} cuts behind it give no JSON`);
}
console.log(`for example: ${untruncate(texts.end.slice(0, -4))}`);
if (wrong.middle !== 0 || wrong.end < 20) throw new Error("changed");
JS
node close.cjs
