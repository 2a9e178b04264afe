"""Grammars of calls whose arguments are no JSON let through values that fit their schema, and no others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from server.formats.reading import MessageReader
from server.formats.spelling import written
from server.text.message import folded
from tests.server.api.test_call_grammar import BY_FAMILY, WRITABLE, Scene
from tests.server.formats.replies import Reply

writable = pytest.mark.parametrize("reply", WRITABLE, ids=lambda reply: reply.family)


def of(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, v being one."""
    return {
        "type": "object",
        "properties": {"v": schema},
        "required": ["v"],
        "additionalProperties": False,
        "$defs": {
            "Size": {"enum": ["S", "XL"], "title": "Size", "type": "string"},
            "Count": {"enum": [1, 2]},
            "Zip": {"type": "string", "maxLength": 5},
        },
    }


def let_through(reply: Reply, schema: dict[str, Any], text: str) -> set[bool]:
    """Whether a reply may be this where a call is required, and in free text."""
    scene = Scene(reply, "no", "bytes")
    functions = {"f": of(schema)}
    larks = [scene.grammar.required(functions), scene.grammar.calls_in_text(functions)]
    return {scene.lets(lark, text) for lark in larks if lark is not None}


def call_of(reply: Reply, value: Any) -> str:
    assert reply.form.calls
    arguments = json.dumps({"v": value})
    return written([{"id": "abcdefgh1", "function": {"name": "f", "arguments": arguments}}], reply.form.calls)


def read(reply: Reply, schema: dict[str, Any], text: str) -> Any:
    reader = MessageReader(replace(reply.form, functions={"f": of(schema)}))
    return json.loads(folded([*reader.feed(text), *reader.end()]).calls[0].arguments)["v"]


def check(reply: Reply, schema: dict[str, Any], right: Sequence[Any], wrong: Sequence[Any]) -> None:
    for value in right:
        text = call_of(reply, value)
        assert let_through(reply, schema, text) == {True}, text
        assert read(reply, schema, text) == value
    for value in wrong:
        text = call_of(reply, value)
        assert let_through(reply, schema, text) == {False}, text


SIZE, COUNT, NULL = {"$ref": "#/$defs/Size"}, {"$ref": "#/$defs/Count"}, {"type": "null"}
FEW: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a value or null": (
        {"anyOf": [{"enum": ["S", "XL"], "type": "string"}, NULL], "default": None},
        ["S", "XL", None],
        ["M", "", "S "],
    ),
    "a reference or null": ({"anyOf": [SIZE, NULL], "title": "Size"}, ["S", None], ["M", 3]),
    "one of two references": ({"oneOf": [SIZE, COUNT]}, ["S", 1], ["M", 3]),
    "all of a reference": ({"allOf": [SIZE], "default": "S", "description": "how big"}, ["XL"], ["M"]),
    "described values": (
        {"oneOf": [{"const": "S", "title": "small"}, {"const": "L", "title": "large"}]},
        ["L"],
        ["M"],
    ),
    "all of a choice": ({"allOf": [{"anyOf": [NULL, COUNT]}]}, [2, None], [3]),
    "values that fit the type": ({"type": ["string", "null"], "enum": ["S", 1, None]}, ["S", None], ["M"]),
}


@pytest.mark.parametrize("kind", FEW)
@writable
def test_only_the_values_of_all_choices_are_let_through(reply: Reply, kind: str):
    check(reply, *FEW[kind])


@pytest.mark.parametrize("family", ["deepseek v3.2", "kimi k3"])
def test_a_value_is_told_with_its_type(family: str):
    """null that is told to be a string would be one."""
    schema = {"anyOf": [SIZE, NULL]}
    right = call_of(BY_FAMILY[family], "S")
    for text in (right.replace(">S<", ">null<"), call_of(BY_FAMILY[family], None).replace(">null<", ">S<")):
        assert text not in (right, call_of(BY_FAMILY[family], None))
        assert let_through(BY_FAMILY[family], schema, text) == {False}


@pytest.mark.parametrize("family", ["function tags", "glm", "minimax m2", "minicpm 5"])
def test_null_among_values_may_be_written_as_in_python(family: str):
    schema = {"anyOf": [SIZE, NULL]}
    text = call_of(BY_FAMILY[family], None).replace("null", "None")
    assert let_through(BY_FAMILY[family], schema, text) == {True}
    assert read(BY_FAMILY[family], schema, text) is None


def test_a_value_or_a_number_is_neither_another_text_nor_another_value():
    schema = {"anyOf": [{"const": "auto"}, {"type": "integer"}]}
    for family in ("function tags", "glm", "deepseek v3.2", "kimi k3"):
        check(BY_FAMILY[family], schema, ["auto", 5], ["none", 1.5])


def test_the_length_of_a_text_by_reference_is_held():
    for family in ("function tags", "glm", "deepseek v3.2", "kimi k3", "gemma 4"):
        check(BY_FAMILY[family], {"$ref": "#/$defs/Zip"}, ["90210"], ["902101"])
