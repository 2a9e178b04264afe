"""Values of arguments that are no JSON where the model writes them: told as the schema types them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from server.formats.families import FAMILIES
from server.formats.reading import MessageReader
from server.formats.schemas import resolved, types_of
from server.formats.spelling import written
from server.text.message import folded
from tests.server.formats.replies import REPLIES, Reply

OWN_SYNTAX = [
    reply
    for reply, family in zip(REPLIES, FAMILIES, strict=True)
    if family.calls and not family.channels and family.calls.arguments in ("parameters", "python", "gemma")
]
TAGGED = [
    reply
    for reply in OWN_SYNTAX
    if reply.form.calls and re.search("⟨(value|cdata|nested)⟩", reply.form.calls.parameter)
]
own_syntax = pytest.mark.parametrize("reply", OWN_SYNTAX, ids=lambda reply: reply.family)
tagged = pytest.mark.parametrize("reply", TAGGED, ids=lambda reply: reply.family)


def _refused(word: str) -> NoReturn:
    raise AssertionError(f"{word} is no JSON")


def told(reply: Reply, text: str, schema: dict[str, Any]) -> Any:
    """Return the value of v where a model writes this text for a value that is no string."""
    assert reply.form.calls
    call = {"id": "abcdefgh1", "function": {"name": "f", "arguments": '{"v": 4711}'}}
    reader = MessageReader(replace(reply.form, functions={"f": schema}))
    pieces = reader.feed(written([call], reply.form.calls).replace("4711", text)) + reader.end()
    return json.loads(folded(pieces).calls[0].arguments, parse_constant=_refused)["v"]


def of(schema: dict[str, Any], **definitions: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": schema}, "$defs": definitions}


@pytest.mark.parametrize("schema", [{}, {"type": "number"}], ids=str)
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@own_syntax
def test_non_json_number_is_text(reply: Reply, word: str, schema: dict[str, Any]):
    assert told(reply, word, of(schema)) == word


@pytest.mark.parametrize("word", ["NaN", "-Infinity", "1e999"])
@own_syntax
def test_non_json_list_number_is_text(reply: Reply, word: str):
    if reply.form.calls and reply.form.calls.arguments == "gemma":
        text = f'[1,{word},<|"|>x<|"|>]'
    else:
        text = f"[1, {word}, 'x']"
    assert told(reply, text, of({"type": "array"})) == [1, word, "x"]


ZIP, SIZE = {"type": "string"}, {"enum": ["S", "1"], "type": "string"}
TEXTS: dict[str, dict[str, Any]] = {
    "a reference": {"$ref": "#/$defs/Zip"},
    "a reference with a description": {"$ref": "#/$defs/Zip", "description": "of the town"},
    "a reference to a reference": {"$ref": "#/$defs/Code"},
    "all of a reference": {"allOf": [{"$ref": "#/$defs/Zip"}], "default": "1"},
    "any of a reference": {"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]},
    "any of two references": {"anyOf": [{"$ref": "#/$defs/Zip"}, {"$ref": "#/$defs/Size"}]},
    "any of itself": {"$ref": "#/$defs/Loop"},
    "a string of two lists of types": {"type": ["string", "array"], "allOf": [{"type": ["string", "null"]}]},
}


@pytest.mark.parametrize("text", ["90210", "true"])
@pytest.mark.parametrize("kind", TEXTS)
@tagged
def test_referenced_string_is_a_string(reply: Reply, kind: str, text: str):
    loop = {"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Zip"}]}
    code = {"$ref": "#/$defs/Zip"}
    assert told(reply, text, of(TEXTS[kind], Zip=ZIP, Size=SIZE, Code=code, Loop=loop)) == text


@pytest.mark.parametrize("text", ["90210", "true"])
def test_nested_referenced_string_is_string(text: str):
    m = "]<]minimax[>["
    minimax = next(reply for reply in OWN_SYNTAX if reply.family == "minimax m3")
    place = {"type": "object", "properties": {"zip": {"$ref": "#/$defs/Zip"}}}
    schema = of({"type": "array", "items": {"$ref": "#/$defs/Place"}}, Zip=ZIP, Place=place)
    assert told(minimax, f"{m}<item>{m}<zip>{text}{m}</zip>{m}</item>", schema) == [{"zip": text}]


@pytest.mark.parametrize(("text", "value"), [("null", None), ("5", 5), ("five", "five")])
@tagged
def test_mixed_reference_keeps_its_type(reply: Reply, text: str, value: object):
    number = {"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "null"}]}
    assert told(reply, text, of(number, Count={"type": "integer"})) == value


def test_endless_choices_allow_any_type():
    names = [str(i) for i in range(30)]
    many = {name: {"anyOf": [{"$ref": f"#/$defs/{int(name) + 1}"}] * 2} for name in names}
    assert types_of({"$ref": "#/$defs/0", "$defs": {**many, "30": {"$ref": "#/$defs/0"}}}) is None
    assert types_of({"$ref": "#/$defs/0", "$defs": {**many, "30": ZIP}}) is None


@pytest.mark.parametrize(
    "odd", [True, {"anyOf": [True]}, {"$ref": 5}, {"type": [7]}, {"$ref": "#/$defs/x/y"}]
)
def test_non_schema_limits_nothing(odd: Any):
    assert types_of(resolved(odd, {"$defs": {"x": 1}})) in (None, frozenset())
