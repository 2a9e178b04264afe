#!/usr/bin/env bash
# outlines-core 0.2.14, which turns JSON schemas into regular expressions for constrained decoding.
# Expected: `allOf` of two objects admits one object that satisfies both.
# Seen:     the two expressions are put one behind the other, so that the constrained text is `{"a":1}{"b":2}`, which is no
#           JSON; the object that satisfies both is refused. No error is raised. (Seen as well: a `pattern` stands in the
#           expression as written, so `^[^x]+$` admits a bare quotation mark inside the string.)
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install outlines-core==0.2.14
"$dir/venv/bin/python" - <<'PY'
import json
import re
from importlib.metadata import version

from outlines_core.json_schema import build_regex_from_schema


def one(name):
    return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}


def admits(schema, text):
    return re.fullmatch(build_regex_from_schema(json.dumps(schema)), text) is not None


both = {"allOf": [one("a"), one("b")]}
print("outlines-core", version("outlines-core"))
seen = {text: admits(both, text) for text in ('{"a":1,"b":2}', '{"a":1}{"b":2}')}
print("allOf of two objects:", seen)
quoted = '"say "hi""'
pattern = admits({"type": "string", "pattern": "^[^x]+$"}, quoted)
print(f"pattern ^[^x]+$ admits {quoted}:", pattern)
assert seen == {'{"a":1,"b":2}': False, '{"a":1}{"b":2}': True}, "changed"
assert pattern, "changed"
PY
