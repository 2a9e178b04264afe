#!/usr/bin/env bash
# fastmcp 4.2.3 (`json_schema_to_type`, with which its client reads structured results) and json-schema-to-pydantic 0.5.0: both make
# Pydantic types from JSON schemas.
# Expected: `allOf` holds each of its schemas. `{"allOf": [{"$ref": …}]}` is how Pydantic 1 and OpenAPI tools write a reference
#           beside a default or description, so it is in many tools' schemas.
# Seen:     fastmcp takes anything there: "z" for an enum of "x" and "y", a text for an integer. json-schema-to-pydantic makes an
#           object of every `allOf`, so it refuses even "x", and 5 for an integer from 0 to 10; its documentation says that it
#           supports `allOf`. jsonschema 4.26.0 has it right. With the reference alone all three agree.
source "$(dirname "$0")/begin.sh"
from_pypi fastmcp==4.2.3 json-schema-to-pydantic==0.5.0 jsonschema==4.26.0
python - <<'PY'
from importlib.metadata import version

import jsonschema
import pydantic
from fastmcp.utilities.json_schema_type import json_schema_to_type
from json_schema_to_pydantic import create_model

DEFINITIONS = {"Unit": {"type": "string", "enum": ["x", "y"]}}
REFERENCE = {"$ref": "#/$defs/Unit"}
CASES = [
    (REFERENCE, "x", (True, True, True)),
    (REFERENCE, "z", (False, False, False)),
    ({"allOf": [REFERENCE], "description": "a unit"}, "x", (True, True, False)),
    ({"allOf": [REFERENCE], "description": "a unit"}, "z", (False, True, False)),
    ({"allOf": [{"type": "integer", "minimum": 0}, {"maximum": 10}]}, 5, (True, True, False)),
    ({"allOf": [{"type": "integer", "minimum": 0}, {"maximum": 10}]}, "five", (False, True, False)),
]


def accepts(make, schema, value):
    try:
        pydantic.TypeAdapter(make(schema)).validate_python(value)
        return True
    except pydantic.ValidationError:
        return False


print(*(f"{name} {version(name)}" for name in ("jsonschema", "fastmcp", "json-schema-to-pydantic")))
for part, given, expected in CASES:
    schema = {"title": "M", "type": "object", "properties": {"a": part}, "required": ["a"], "$defs": DEFINITIONS}
    value = {"a": given}
    valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    seen = valid, accepts(json_schema_to_type, schema, value), accepts(create_model, schema, value)
    print(f"{part}, {given!r}: jsonschema {seen[0]}, fastmcp {seen[1]}, json-schema-to-pydantic {seen[2]}")
    assert seen == expected, "changed"
PY
