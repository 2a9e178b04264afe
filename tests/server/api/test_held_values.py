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

TREE = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "to": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
    "required": ["n"],
    "additionalProperties": False,
}


def of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments whose member v has this schema."""
    return {
        "type": "object",
        "properties": {"v": schema},
        "required": ["v"],
        "additionalProperties": False,
        "$defs": {
            "Size": {"enum": ["S", "XL"], "title": "Size", "type": "string"},
            "Count": {"enum": [1, 2]},
            "Zip": {"type": "string", "maxLength": 5},
            "Tree": TREE,
        },
    }


def let_through(reply: Reply, schema: dict[str, Any], text: str) -> set[bool]:
    """Return whether the reply may be `text`, where a call is required and in free text."""
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
def test_only_common_enum_values_pass(reply: Reply, kind: str):
    check(reply, *FEW[kind])


@pytest.mark.parametrize("family", ["deepseek v3.2", "kimi k3"])
def test_a_value_is_told_with_its_type(family: str):
    """A null declared to be a string would be one."""
    schema = {"anyOf": [SIZE, NULL]}
    right = call_of(BY_FAMILY[family], "S")
    for text in (right.replace(">S<", ">null<"), call_of(BY_FAMILY[family], None).replace(">null<", ">S<")):
        assert text not in (right, call_of(BY_FAMILY[family], None))
        assert let_through(BY_FAMILY[family], schema, text) == {False}


@pytest.mark.parametrize("family", ["function tags", "glm", "minimax m2", "minicpm 5"])
def test_null_may_be_python_none(family: str):
    schema = {"anyOf": [SIZE, NULL]}
    text = call_of(BY_FAMILY[family], None).replace("null", "None")
    assert let_through(BY_FAMILY[family], schema, text) == {True}
    assert read(BY_FAMILY[family], schema, text) is None


def test_number_is_no_text_value():
    schema = {"anyOf": [{"const": "auto"}, {"type": "integer"}]}
    for family in ("function tags", "glm", "deepseek v3.2", "kimi k3"):
        check(BY_FAMILY[family], schema, ["auto", 5], ["none", 1.5])


def test_referenced_length_is_held():
    for family in ("function tags", "glm", "deepseek v3.2", "kimi k3", "gemma 4"):
        check(BY_FAMILY[family], {"$ref": "#/$defs/Zip"}, ["90210"], ["902101"])


A = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
INSIDE: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "an object": (A, [{"a": 1}], [{"name": "Omar"}, {"a": "x"}, {"a": 1, "b": 2}, {}]),
    "an object or null": ({"anyOf": [A, NULL]}, [{"a": 1}, None], [{"a": None}, {}]),
    "integers": ({"type": "array", "items": {"type": "integer"}}, [[], [1, 2]], [["The"], [1, "x"], [[1]]]),
    "values": ({"type": "array", "items": SIZE}, [["S", "XL"]], [["M"], ["S", "M"], [1]]),
    "words": ({"type": "array", "items": {"type": "string"}}, [["it's", 'a "b"']], [[1], [None]]),
    "words or null": (
        {"type": "array", "items": {"type": ["string", "null"]}},
        [["it", None], [None]],
        [[1], [True]],
    ),
    "objects": ({"type": "array", "items": A}, [[{"a": 1}, {"a": 2}]], [[{"a": "x"}], [{}], ["x"]]),
    "a list in an object": (
        {"type": "object", "properties": {"l": {"type": "array", "items": COUNT}, "t": {"type": "boolean"}}},
        [{"l": [1, 2], "t": True}, {"t": False}],
        [{"l": [3]}, {"l": [1], "t": "x"}],
    ),
    "any keys": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"x": 1, "y": 2}],
        [{"x": "y"}],
    ),
    "no keys": ({"type": "object", "additionalProperties": False}, [{}], [{"x": 1}]),
    "a tree": (
        {"$ref": "#/$defs/Tree"},
        [{"n": 1}, {"n": 1, "to": [{"n": 2, "to": [{"n": 3, "to": []}]}]}],
        [{"n": 1, "to": [{"n": 2, "to": [{"n": "x"}]}]}, {"to": []}],
    ),
    "lists of anything": ({"type": "array", "items": {}}, [[1, "x", {"y": [None]}]], [{"x": 1}, "x"]),
}


@pytest.mark.parametrize("kind", INSIDE)
@writable
def test_nested_lists_and_objects_hold(reply: Reply, kind: str):
    schema, right, wrong = INSIDE[kind]
    free = reply.family == "minimax m3" and kind in ("any keys", "no keys", "an object or null")
    check(reply, schema, right, [] if free else wrong)


IN_PYTHON: list[tuple[dict[str, Any], str, Any]] = [
    ({"type": "array", "items": {"type": "boolean"}}, "[True, False]", [True, False]),
    ({"type": "array", "items": {"anyOf": [SIZE, NULL]}}, "['S', None]", ["S", None]),
    ({"type": "array", "items": A}, "[{'a': 1}]", [{"a": 1}]),
    ({"type": "object", "properties": {"it's": {"type": "string"}}}, "{\"it's\": 'x'}", {"it's": "x"}),
    ({"type": "object", "additionalProperties": {"type": "boolean"}}, "{'x': True}", {"x": True}),
    ({"type": "array"}, "['x', {'y': None}]", ["x", {"y": None}]),
    ({"type": "object"}, "{'x': [True]}", {"x": [True]}),
]


@pytest.mark.parametrize(("schema", "text", "value"), IN_PYTHON, ids=[text for _, text, _ in IN_PYTHON])
@pytest.mark.parametrize("family", ["function tags", "glm", "seed", "minimax m2", "deepseek v3.2", "lfm"])
def test_python_lists_and_objects_pass(family: str, schema: dict[str, Any], text: str, value: Any):
    reply = BY_FAMILY[family]
    empty = type(value)()
    written_so = call_of(reply, empty).replace(str(empty), text)
    assert let_through(reply, schema, written_so) == {True}
    assert read(reply, schema, written_so) == value


def test_list_length_is_held():
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}
    for family in ("function tags", "glm", "deepseek v3.2", "lfm", "gemma 4"):
        check(BY_FAMILY[family], schema, [["x"], ["x", "y"]], [[], ["x", "y", "z"]])


@pytest.mark.parametrize("shape", [(32, 1), (100, 1), (200, 1), (10, 60)], ids=str)
@writable
def test_schemas_with_many_keys_are_held(reply: Reply, shape: tuple[int, int]):
    n_outer, n_inner = shape

    def part(i: int) -> dict[str, Any]:
        inner = {f"k{i}x{j}": {"type": "integer", "minimum": i} for j in range(n_inner)}
        return {"type": "object", "properties": inner, "required": list(inner)[:1]}

    schema = {"type": "object", "properties": {f"p{i}": part(i) for i in range(n_outer)}}
    assert let_through(reply, schema, call_of(reply, {"p0": {"k0x0": 1}}).replace("'", '"')) == {True}


@writable
def test_long_lists_may_be_requested(reply: Reply):
    schema = {"type": "array", "items": {"enum": [f"value {i}" for i in range(1500)]}}
    if reply.family != "minimax m3":  # more elements than a grammar takes
        assert True in let_through(reply, schema, call_of(reply, ["value 1"]).replace("'", '"'))


@pytest.mark.parametrize("family", ["gemma 4", "lfm"])
def test_required_arguments_are_held_in_free_text(family: str):
    reply = BY_FAMILY[family]
    scene = Scene(reply, "no", "bytes")
    of_all = {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}
    functions = {"f": {"type": "object", "properties": of_all, "required": ["a", "b"]}}
    lark = scene.grammar.calls_in_text(functions)
    assert lark
    sign, between = ("=", ", ") if family == "lfm" else (":", ",")

    def lets(keys: str) -> bool:
        return scene.lets(lark, reply.one.replace(f"a{sign}1", between.join(f"{key}{sign}1" for key in keys)))

    assert [lets(keys) for keys in ("ab", "ba", "cba", "bca", "abc")] == [True] * 5
    assert [lets(keys) for keys in ("a", "bc", "aab", "")] == [False] * 4


TAGGED = [reply for reply in WRITABLE if reply.form.calls and reply.form.calls.arguments == "parameters"]


@pytest.mark.parametrize("reply", TAGGED, ids=lambda reply: reply.family)
def test_a_text_with_its_end(reply: Reply):
    assert reply.form.calls
    end = reply.form.calls.value_end[0].replace("⟨key⟩", "v")
    for text in (f"a{end}b", f"a{end}\n\nb{end} c", f"{end}{' ' * 20}x", f"a{end}\n{end}", f"{end}{end}c"):
        check(reply, {"type": "string"}, [text], [])


@pytest.mark.parametrize("reply", TAGGED, ids=lambda reply: reply.family)
def test_a_limited_text_with_its_end(reply: Reply):
    assert reply.form.calls
    end = reply.form.calls.value_end[0].replace("⟨key⟩", "v")
    most = len(end) + 30
    right = ["x" * most, f"a{end}b", f"{end}{'y' * 10}", f"{'x' * 10}{end}y"]
    check(
        reply, {"type": "string", "maxLength": most}, right, ["x" * (most + 1), f"{'x' * 20}{end}{'y' * 20}"]
    )


@pytest.mark.parametrize("reply", TAGGED, ids=lambda reply: reply.family)
def test_a_parameter_after_such_a_text(reply: Reply):
    assert reply.form.calls
    of_all = {"v": {"type": "string"}, "n": {"type": "integer"}}
    functions = {"f": {"type": "object", "properties": of_all, "additionalProperties": False}}
    end = reply.form.calls.value_end[0].replace("⟨key⟩", "v")
    scene = Scene(reply, "no", "bytes")
    for lark in (scene.grammar.required(functions), scene.grammar.calls_in_text(functions)):
        assert lark
        for more, right in (({}, True), ({"n": 1}, True), ({"n": "x"}, False), ({"w": 1}, False)):
            arguments = json.dumps({"v": f"a{end} b", **more})
            called = [{"id": "abcdefgh1", "function": {"name": "f", "arguments": arguments}}]
            assert scene.lets(lark, written(called, reply.form.calls)) is right


@pytest.mark.parametrize("family", ["glm", "glm 4.7", "hunyuan"])
def test_a_text_with_its_end_token(family: str):
    reply = BY_FAMILY[family]
    assert reply.form.calls
    text = call_of(reply, f"a{reply.form.calls.value_end[0]} b")
    scene = Scene(reply, "no", "marks")
    for lark in (
        scene.grammar.required({"f": of({"type": "string"})}),
        scene.grammar.calls_in_text({"f": of({"type": "string"})}),
    ):
        assert lark
        assert scene.lets(lark, text)
        assert not scene.lets(lark, text.replace(">v<", ">w<"))


KEYS = ["dc:title", "key=val", "a<b", "a>b", "a|b", "x-y", "$ref", "a/b", "with space", "ids[]"]


@pytest.mark.parametrize("pieces", ["whole", "by characters"])
@writable
def test_odd_keys_keep_their_values(reply: Reply, pieces: str):
    assert reply.form.calls
    for key in KEYS:
        schema = {"type": "object", "properties": {key: {"type": "string"}, "v": {"type": "integer"}}}
        given = {key: "x", "v": 1}
        called = [{"id": "abcdefgh1", "function": {"name": "f", "arguments": json.dumps(given)}}]
        text = written(called, reply.form.calls)
        reader = MessageReader(replace(reply.form, functions={"f": schema}))
        parts = [text] if pieces == "whole" else list(text)
        told = [piece for part in parts for piece in reader.feed(part)]
        [call] = folded([*told, *reader.end()]).calls
        assert json.loads(call.arguments) == given, key
