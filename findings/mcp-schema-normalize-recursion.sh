#!/usr/bin/env bash
# mcp-schema-normalize 0.1.1, which rewrites tools' JSON schemas for llama.cpp in a proxy, by writing references out.
# Expected: what fitted the schema fits the rewritten one, and what did not, does not, unless its counters tell of a loss.
# Seen:     of a recursive schema that begins with a reference, as Pydantic writes one, the definitions are dropped while a
#           reference to them stays: no reader can resolve it. What stands beside a `$ref` (a `minimum`, say) is lost, and so is
#           a property's type when a branch of `anyOf` names the property as well. The counters tell of no loss.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install mcp-schema-normalize==0.1.1 jsonschema==4.26.0 pydantic==2.14.4
"$dir/venv/bin/python" - <<'PY'
import copy
import json
import logging
from importlib.metadata import version

import jsonschema
import pydantic
from mcp_schema_normalize import is_lossy_telemetry, normalize_schema

logging.disable(logging.CRITICAL)


class Folder(pydantic.BaseModel):
    folders: list["Folder"] = []


def fits(schema, value):
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(value)
    except Exception as error:
        return f"error: {error}"


beside = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n", "minimum": 5}}, "$defs": {"n": {"type": "integer"}}}
bounds = [{"properties": {"n": {"minimum": 5}}}, {"properties": {"n": {"maximum": 1}}}]
branches = {"type": "object", "properties": {"n": {"type": "integer"}}, "anyOf": bounds}
plain = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
seen = []
for schema, value in (
    (plain, {"n": "a"}),
    (Folder.model_json_schema(), {"folders": [{"folders": []}]}),
    (beside, {"n": 3}),
    (branches, {"n": "a"}),
):
    rewritten, counters = normalize_schema(copy.deepcopy(schema))
    seen.append((fits(schema, value), fits(rewritten, value), is_lossy_telemetry(counters)))
    print(f"{json.dumps(schema)} becomes {json.dumps(rewritten)}: {value} fits (before, after), told as a loss: {seen[-1]}")
print("mcp-schema-normalize", version("mcp-schema-normalize"))
assert seen[0] == (False, False, False), seen
assert seen[1][0] is True and str(seen[1][1]).startswith("error") and not seen[1][2], "changed"
assert seen[2:] == [(False, True, False), (False, True, False)], "changed"
PY
