#!/usr/bin/env bash
# best-effort-json-parser 1.5.1, which reads JSON that is still being streamed (arguments of tool calls, say).
# Expected: of `{"rate": 1e-3, "name": "a`, the beginning of a valid text, the rate 0.001 and what there is of the name.
# Seen:     the rate is 1, and the exponent becomes the beginning of a key, `e-3, "name"`. When the text is complete, both are
#           right at once. partial-json 0.1.7 and a number without an exponent do as expected.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund best-effort-json-parser@1.5.1 partial-json@0.1.7 >/dev/null
cat > read.mjs <<'JS'
import * as bestEffort from "best-effort-json-parser";
import * as partialJson from "partial-json";
console.error = console.warn = () => {};
const texts = ['{"rate": 1e-3, "name": "a', '{"rate": 0.001, "name": "a', '{"rate": 1e-3, "name": "a"}'];
const seen = texts.map((text) => [bestEffort.parse(text), partialJson.parse(text)].map((value) => JSON.stringify(value)));
texts.forEach((text, i) => console.log(`${text}: best-effort-json-parser ${seen[i][0]}, partial-json ${seen[i][1]}`));
const right = '{"rate":0.001,"name":"a"}';
const expected = [['{"rate":1,"e-3, \\"name\\"":"a"}', right], [right, right], [right, right]];
if (JSON.stringify(seen) !== JSON.stringify(expected)) throw new Error("changed");
JS
node read.mjs
