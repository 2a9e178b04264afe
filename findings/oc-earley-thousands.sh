#!/usr/bin/env bash
# oc-earley 0.1.0, which holds a model's tokens to a JSON schema; it promises an exact language, that no assertion is ever removed
# to make a schema compile, and that what it cannot do raises.
# Expected: `enum: [500, 1000]` admits 1000, as models write it; `minLength` and `maxLength` beside a `$ref` hold, as draft 2020-12
#           has it; an integer is a number, so `allOf` of the two types admits 2.
# Seen:     1000 is refused and `1e3` is admitted, where `type: integer` of the same package refuses `1e3` and admits 1000; 8000 is
#           `8e3`, 1500 is itself. Python's json module reads `1e3` as a float. The two lengths beside a `$ref` are dropped (without
#           `$ref` they raise, as `minItems` beside one does). The `allOf` compiles and refuses 2. No error is raised.
source "$(dirname "$0")/begin.sh"
from_pypi oc-earley==0.1.0 jsonschema==4.26.0
python - <<'PY'
import json
from importlib.metadata import version

import jsonschema
from oc_earley import CompiledSchema, Vocabulary

vocabulary = Vocabulary(256, {bytes([i]): [i] for i in range(256)})


def admits(schema, text):
    try:
        return CompiledSchema.from_json_schema(schema, vocabulary).recognizer().advance(text) == "accepting"
    except ValueError:
        return "raises"


integer, number = {"type": "integer"}, {"type": "number"}
name = {"$ref": "#/$defs/name", "$defs": {"name": {"type": "string"}}}
tool = {"type": "object", "properties": {"n": {"enum": [500, 1000]}}, "required": ["n"], "additionalProperties": False}
print("oc-earley", version("oc-earley"), "jsonschema", version("jsonschema"))
for schema, text, expected in (
    (tool, '{"n":500}', (True, True)),
    (tool, '{"n":1000}', (False, True)),
    (tool, '{"n":1e3}', (True, True)),
    ({"const": 8000}, "8000", (False, True)),
    ({"const": 1500}, "1500", (True, True)),
    (integer, "1000", (True, True)),
    (integer, "1e3", (False, True)),
    ({**name, "minLength": 3}, '"ab"', (True, False)),
    ({**name, "maxLength": 1}, '"ab"', (True, False)),
    ({"type": "string", "minLength": 3}, '"ab"', ("raises", False)),
    ({**name, "minItems": 2}, '"ab"', ("raises", True)),
    ({"anyOf": [integer, number]}, "2", (True, True)),
    ({"allOf": [integer, number]}, "2", (False, True)),
):
    seen = admits(schema, text), jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    print(f"{json.dumps(schema)} admits {text} (oc-earley, jsonschema):", seen)
    assert seen == expected, "changed"
PY
