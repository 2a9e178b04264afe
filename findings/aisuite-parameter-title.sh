#!/usr/bin/env bash
# aisuite 0.2.0, a client of many providers, whose class `Tools` makes tools of Python functions and runs them.
# Expected: the schema that a model sees has each parameter of the function, and a call that keeps to the schema runs. A parameter
#           that is a Pydantic model arrives as this model, since its annotation says so.
# Seen:     a parameter named `title` is left out of `properties`, with the titles that Pydantic writes; `required` still names it, so
#           the model must write what nobody describes. It is so within models too. A call without it, with all that the schema
#           tells of, raises ValueError. A Pydantic model arrives as a dict.
source "$(dirname "$0")/begin.sh"
from_pypi "aisuite[openai]==0.2.0" openai==1.109.1 pydantic==2.14.4
python - <<'PY'
import json
from importlib.metadata import version

from aisuite.utils.tools import Tools
from pydantic import BaseModel


class Note(BaseModel):
    title: str
    text: str


def write(title: str, text: str):
    """Write a note.

    Args:
        title: The first line.
        text: All other lines.
    """
    return title, text


def keep(note: Note):
    """Keep a note."""
    return note


def run(name, given):
    try:
        return tools.execute({"function": {"name": name, "arguments": json.dumps(given)}})[0]
    except ValueError as error:
        return f"ValueError: {error}".splitlines()[0]


tools = Tools([write, keep])
parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools.tools()}
note = {"title": "a", "text": "b"}
print("aisuite", version("aisuite"))
for name, schema in {"write": parameters["write"], "keep": parameters["keep"]["properties"]["note"]}.items():
    print(f"{name}: properties {sorted(schema['properties'])}, required {schema['required']}")
    assert sorted(schema["properties"]) == ["text"] and schema["required"] == ["title", "text"], "changed"
full, told, model = run("write", note), run("write", {"text": "b"}), run("keep", {"note": note})
print(f"write ran with {full}; without a title: {told}; keep ran with {model!r}")
assert full == ("a", "b"), full
assert told.startswith("ValueError: Error in tool 'write'") and model == note, "changed"
PY
