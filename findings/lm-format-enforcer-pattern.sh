#!/usr/bin/env bash
# lm-format-enforcer 0.11.3, which constrains a model's tokens to a JSON schema.
# Expected: `pattern` is searched for in the string, as JSON Schema says: `^/tmp/` admits every path below /tmp.
# Seen:     the string must be what the pattern matches and no more: `^/tmp/` admits "/tmp/" alone and `a` the string "a", so a
#           model can write no other path. A character that JSON writes with a backslash cannot stand in such a string, even
#           for `^[^x]+$`. No error is raised. jsonschema 4.26.0 takes the refused strings for valid.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install \
    lm-format-enforcer==0.11.3 jsonschema==4.26.0 pydantic==2.14.4
"$dir/venv/bin/python" - <<'PY'
import json
from importlib.metadata import version

import jsonschema
from lmformatenforcer import JsonSchemaParser


def admits(schema, text):
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


seen = []
for pattern, text in (
    ("^/tmp/", "/tmp/"),
    ("^/tmp/", "/tmp/notes"),
    ("a", "a"),
    ("a", "cat"),
    ("^[^x]+$", "plain"),
    ("^[^x]+$", 'say "hi"'),
    ("^[^x]+$", "two\nlines"),
):
    schema = {"type": "string", "pattern": pattern}
    seen.append(admits(schema, json.dumps(text)))
    valid = jsonschema.Draft202012Validator(schema).is_valid(text)
    print(f"{pattern} admits {json.dumps(text)}: lm-format-enforcer {version('lm-format-enforcer')} {seen[-1]}, jsonschema {valid}")
    assert valid, text
assert seen == [True, False, True, False, True, False, False], "changed"
PY
