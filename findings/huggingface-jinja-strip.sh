#!/usr/bin/env bash
# @huggingface/jinja 0.5.11, which renders chat templates for Transformers.js and wllama.
# Expected: the same text as Jinja2, for which chat templates are written.
# Seen:     `strip`, `lstrip` and `rstrip` ignore their argument and take white space away instead. Qwen3's template uses
#           `lstrip('\n')` and `rstrip('\n')` on earlier replies, so an indented reply (code, say) loses its indentation in
#           the next turn's prompt. Also `'1' == 1` is true, and two equal lists or dicts are never equal. No error is raised.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install jinja2==3.1.6
cd "$dir"
npm install --silent --no-audit --no-fund @huggingface/jinja@0.5.11 >/dev/null
cat > cases.json <<'JSON'
[
  ["{{ reply.split('</think>')[-1].lstrip('\\n') }}", "</think>\n\n    return x"],
  ["{{ reply.strip('*') }}", "**bold**"],
  ["{{ 'yes' if reply == 1 else 'no' }}", "1"],
  ["{{ 'yes' if [reply] == [reply] else 'no' }}", "a"]
]
JSON
cat > render.mjs <<'JS'
import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";
const cases = JSON.parse(readFileSync("cases.json"));
console.log(JSON.stringify(cases.map(([template, reply]) => new Template(template).render({ reply }))));
JS
node render.mjs > theirs.json
"$dir/venv/bin/python" - <<'PY'
import json

import jinja2

cases, theirs = json.load(open("cases.json")), json.load(open("theirs.json"))
ours = [jinja2.Template(template).render(reply=reply) for template, reply in cases]
for (template, reply), python, script in zip(cases, ours, theirs):
    print(f"{template} of {reply!r}: Jinja2 {jinja2.__version__} {python!r}, @huggingface/jinja 0.5.11 {script!r}")
assert ours == ["    return x", "bold", "no", "yes"], ours
assert theirs == ["return x", "**bold**", "yes", "no"], f"changed: {theirs}"
PY
