#!/usr/bin/env bash
# incomplete-json-parser 1.1.5 and json-autocomplete 0.1.3, which read JSON that a model is still writing (the first parses it,
# the second closes it).
# Expected: a text that is complete is itself: `{}`, what models write to call a function without arguments, is an empty object.
# Seen:     incomplete-json-parser refuses every text with an empty object in it, and every number with an exponent.
#           json-autocomplete makes `{}: null}` of `{}` and `{"a": {}}: null}}` of `{"a": {}}`, and leaves a string open whose last
#           quotation mark has a backslash: the results are no JSON. partial-json 0.1.7 does as expected.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund incomplete-json-parser@1.1.5 json-autocomplete@0.1.3 partial-json@0.1.7 >/dev/null
cat > read.mjs <<'JS'
import { IncompleteJsonParser } from "incomplete-json-parser";
import autocomplete from "json-autocomplete";
import { parse } from "partial-json";
const attempt = (read, text) => {
  try {
    return JSON.stringify(read(text));
  } catch (error) {
    return "error";
  }
};
const readers = [parse, (text) => IncompleteJsonParser.parse(text), (text) => JSON.parse((autocomplete.default ?? autocomplete)(text))];
const texts = {
  '{"a": []}': ['{"a":[]}', '{"a":[]}', '{"a":[]}'],
  "{}": ["{}", "error", "error"],
  '{"a": {}}': ['{"a":{}}', "error", "error"],
  '{"a": 1e3}': ['{"a":1000}', "error", '{"a":1000}'],
  '{"a": "b': ['{"a":"b"}', '{"a":"b"}', '{"a":"b"}'],
  '{"a": "say \\"hi': ['{"a":"say \\"hi"}', '{"a":"say \\"hi"}', "error"],
};
for (const [text, expected] of Object.entries(texts)) {
  const seen = readers.map((read) => attempt(read, text));
  console.log(`${text}: partial-json ${seen[0]}, incomplete-json-parser ${seen[1]}, json-autocomplete ${seen[2]}`);
  if (JSON.stringify(seen) !== JSON.stringify(expected)) throw new Error("changed");
}
JS
node read.mjs
