"""JSON schemas: texts that fit, and refusals that name the place."""

from __future__ import annotations

import gc
import json
import random
import time
import weakref
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits

from server.errors import InvalidRequestError
from server.grammar import grammar_constraint as constraint
from server.grammar.compiler import KEPT_BYTES, Compiler
from server.grammar.grammar_constraint import TOKEN_BYTES, compile_json_schema
from server.grammar.json_schema import Allowance, blame
from server.sampling.constraint import Constraint
from tests.fake_backend import FakeVocabulary
from tests.server.grammar.test_grammar_constraint import accepts, refusal, stroll

VOCABULARY = FakeVocabulary()


def start(schema: dict[str, Any]) -> Constraint:
    return Compiler(VOCABULARY).json_schema(schema)()


NODE = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
TAGGED = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "discriminator": {"propertyName": "kind"},
    "$defs": {
        "Cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
        "Dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
    },
}
BOTH = {
    "allOf": [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
    ]
}


@pytest.mark.parametrize(
    ("schema", "fits", "does_not"),
    [
        ({}, ["1", '{"a":[null]}', '"x"'], ["", "x"]),
        ({"type": ["string", "null"]}, ["null", '"a"'], ["1"]),
        ({"enum": ["a", 1, None, {"x": [1]}]}, ['"a"', "1", "null", '{"x":[1]}'], ['"b"', "2"]),
        ({"const": {"a": [1, "é"]}}, ['{"a":[1,"é"]}'], ['{"a":[1]}']),
        ({"type": "string", "pattern": "^[a-c]{2,3}$"}, ['"ab"', '"cab"'], ['"a"', '"abd"', '"abca"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"', '"x"']),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"日本語"'], ['"a"', '"abcd"']),
        ({"type": "integer", "minimum": -3, "maximum": 12}, ["-3", "0", "12"], ["-4", "13", "1.5"]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}, ["0.1", "1.5"], ["0", "1.6"]),
        ({"type": "integer", "multipleOf": 7}, ["0", "49"], ["48"]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, ["[1]"], ["[]"]),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": False}, ["[]", "[1]"], ["[1,1]", "[2]"]),
        (NODE, ['{"next":{"next":null}}', "{}"], ['{"next":1}']),
        (TAGGED, ['{"kind":"dog"}'], ['{"kind":"cow"}', "{}"]),
        (BOTH, ['{"a":1,"b":true}'], ['{"a":1}', '{"b":true}']),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ['{"x":1}'], ['{"x":"1"}']),
        ({"type": "object", "patternProperties": {"^n_": {"type": "null"}}}, ['{"n_a":null}'], ['{"n_a":1}']),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_keywords_have_their_meaning(schema: dict[str, Any], fits: list[str], does_not: list[str]):
    for text in fits:
        assert accepts(start(schema), text), text
        jsonschema.validate(json.loads(text), schema)
    for text in does_not:
        assert not accepts(start(schema), text), text


def test_white_space_is_bounded():
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    for text in ['{"a":[1,2]}', '{"a": [1, 2]}', '{\n    "a": [\n        1,\n        2\n    ]\n}']:
        assert accepts(start(schema), text)
    for text in ['{"a":  1}', '{\n\n\n"a": 1}', "{" + "\n" + " " * 41 + "}", ' {"a":[]}', '{"a":[]} ']:
        assert not accepts(start(schema), text)


def test_schema_cannot_disable_its_checks():
    loose = {"type": "object", "x-guidance": {"whitespace_pattern": "x*", "lenient": True}}
    assert not accepts(start(loose), '{x"a":1}')
    assert refusal(lambda: start({**loose, "minContains": 1, "contains": {}})).param == "json_schema.contains"


def nested(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(n):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "nonsense"}, "type", "nonsense"),
    ({"properties": {"x": {"items": {"not": {}}}}}, "properties.x.items.not", "not supported"),
    ({"properties": {"a b/c~": {"uniqueItems": True}}}, "properties.a b/c~.uniqueItems", "not supported"),
    ({"anyOf": [{}, {"format": 5, "type": "string"}]}, "anyOf.1.format", "must be a text"),
    ({"contains": {}, "minContains": 0, "uniqueItems": False}, "contains", "not supported"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"if": {}}}}, "$defs.a.if", "not supported"),
    ({"items": {"$ref": "#/$defs/b"}}, "items.$ref", "'/$defs/b' does not exist"),
    ({"$ref": "https://example.com/s.json"}, "$ref", "example.com"),
    ({"$ref": "file:///etc/hosts"}, "$ref", "not fetch"),
    ({"items": [{"pattern": "(?=a)b", "type": "string"}]}, "items.0.pattern", "look-ahead"),
    ({"properties": {"x": {"pattern": "(["}}}, "properties.x.pattern", "unclosed character class"),
    ({"allOf": [{"type": "string"}, {"pattern": r"(a)\1"}]}, "allOf.1.pattern", "backreferences"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum", "greater than maximum"),
    ({"properties": []}, "properties", "must be an object"),
    ({"required": "a", "type": "object"}, "required", "must be a list of texts"),
    ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "oneOf", "exclude each other"),
    ({"type": "integer", "multipleOf": 1_000_003}, "multipleOf", "above 50000"),
    ({"allOf": [{"multipleOf": 1009}, {"multipleOf": 1013}]}, "allOf.0.multipleOf", "above 50000"),
    (nested(60), "", "120 levels"),
    ({"enum": ["x" * 70_000]}, "", "at most 65536 characters"),
    ({"type": "object", "properties": {f"p{i}": {} for i in range(1500)}}, "", "1000"),
    ({"items": {"exclusiveMinimum": 0, "maximum": 0.5}}, "items.exclusiveMinimum", "includes"),
    ({"minimum": -1.5, "exclusiveMaximum": -1.0}, "exclusiveMaximum", "includes"),
    ({"$ref": "#"}, "$ref", "no value fits"),
]


@pytest.mark.parametrize(
    ("schema", "place", "reason"),
    REFUSED,
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_a_refusal_names_the_place(schema: dict[str, Any], place: str, reason: str):
    began = time.process_time()
    error = refusal(lambda: start(schema))
    assert time.process_time() - began < 10, "as good as hanging"
    assert reason in error.message
    assert error.param == (f"json_schema.{place}" if place else "json_schema")


@pytest.mark.parametrize(
    "schema",
    [
        nested(59),
        {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
        {"type": "string", "minLength": 100_000},
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**6},
        {"enum": [f"value {i * 7919 % 100_000}" for i in range(3000)]},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}},
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(24)},
                "d24": {"type": "string"},
            },
        },
    ],
    ids=["deep", "pattern", "long string", "long array", "enum", "200 properties", "doubling references"],
)
def test_large_schemas_are_compiled_in_no_time(schema: dict[str, Any]):
    began = time.process_time()
    assert start(schema).mask().any()
    assert time.process_time() - began < 10, "as good as hanging"


def test_blame_looks_at_bounded_parts():
    schema = {"properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
    asked: list[object] = []

    def fault(part: object) -> str:
        asked.append(part)
        return f"fault {len(asked) > 1}"

    place, _ = blame(schema, fault)
    assert place == ()
    assert len(asked) <= 210


def test_blame_compiles_large_schemas_once():
    schema: dict[str, Any] = {"enum": ["x" * 40_000]}
    for _ in range(50):
        schema = {"properties": {"a": schema}}
    asked: list[object] = []

    def fault(part: object) -> str:
        asked.append(part)
        return "a fault"

    place, why = blame(schema, fault)
    assert why == "a fault"
    assert place == ("properties", "a") * (len(asked) - 1)
    assert len(asked) <= 5


def test_compiled_schemas_are_cached():
    n_bytes = compile_json_schema(VOCABULARY, {"type": "object", "properties": {"a": {}, "b": {}}}).n_bytes
    compiler = Compiler(VOCABULARY, kept_bytes=int(2.5 * n_bytes))
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {}, "b": {}}}
    other: dict[str, Any] = {
        "type": "object",
        "properties": {"b": {}, "a": {}},
    }  # in this order, so another text
    first = compiler.json_schema(schema)
    assert compiler.json_schema(json.loads(json.dumps(schema))) is first
    assert compiler.json_schema(other) is not first
    assert compiler.json_schema(schema) is first
    assert compiler.json_object() is compiler.json_object()
    compiler.gbnf('root ::= "a"')
    assert compiler.json_schema(schema) is not first, "two have room"
    one, another = first(), first()
    one.accept(ord("{"))
    assert one.allows(ord('"'))
    assert not another.allows(ord('"'))


def alive(grammars: list[weakref.ref[Any]]) -> list[Any]:
    gc.collect()
    return [grammar for reference in grammars if (grammar := reference()) is not None]


def test_kept_grammars_are_bounded_by_their_bytes():
    compiler = Compiler(VOCABULARY)
    small = compiler.json_object()
    large: list[weakref.ref[Any]] = []
    for i in range(20):
        names = {f"property {i} {j}": {"type": "string"} for j in range(900)}
        schema = {"type": "object", "properties": names, "required": list(names)}
        large.append(weakref.ref(compiler.json_schema(schema)))
        assert compiler.json_object() is small, "asked for just now"
    kept = alive(large)
    assert 0 < len(kept) < 20
    assert sum(grammar.n_bytes for grammar in kept) <= KEPT_BYTES


def test_grown_grammar_takes_the_room():
    first, second = {"const": "a"}, {"const": "b"}
    n_bytes = compile_json_schema(VOCABULARY, first).n_bytes
    compiler = Compiler(VOCABULARY, kept_bytes=3 * n_bytes + 20 * TOKEN_BYTES)
    before, grown = compiler.json_schema(first), compiler.json_schema(second)
    for _ in range(10):
        text = grown()
        for token in b'"b"':
            text.accept(token)
    compiler.json_schema(second)
    compiler.json_schema({"const": "c"})
    assert compiler.json_schema(first) is not before


def test_oversized_grammar_evicts_no_other():
    n_bytes = compile_json_schema(VOCABULARY, {}).n_bytes
    compiler = Compiler(VOCABULARY, kept_bytes=int(1.5 * n_bytes))
    first, large = compiler.json_schema({}), {"enum": [str(i) for i in range(1000)]}
    assert compiler.json_schema(large) is not compiler.json_schema(large)
    assert compiler.json_schema({}) is first


def test_limit_breach_spares_later_texts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constraint, "LIMITS", LLParserLimits(max_lexer_states=300, verbose_errors=False))
    compiler = Compiler(VOCABULARY)
    schema = {"type": "string", "pattern": "^.*[a-m].{14}$"}  # a state for each pattern of 14 characters
    rng = random.Random(1)

    def beyond() -> None:
        text = compiler.json_schema(schema)()
        text.accept(ord('"'))
        for _ in range(1000):
            text.accept(rng.choice(b"az"))

    assert "too many states" in refusal(beyond).message
    assert accepts(compiler.json_schema(schema)(), '"' + "a" * 15 + '"')


def test_used_grammar_is_compiled_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constraint, "MAX_GRAMMAR_TOKENS", 6)
    compiler = Compiler(VOCABULARY)
    first = compiler.json_schema({"const": "a"})
    for kept in (True, False):
        assert (compiler.json_schema({"const": "a"}) is first) is True
        assert accepts(first(), '"a"')
        assert (compiler.json_schema({"const": "a"}) is first) is kept


def test_multiples_are_bounded_per_request():
    allowance = Allowance()
    allowance.written({"multipleOf": 30_011}, "a")
    allowance.written({"type": "string"}, "b")
    error = refusal(lambda: allowance.written({"properties": {"x": {"multipleOf": 30_013}}}, "c"))
    assert error.param == "c.properties.x.multipleOf"
    assert "above 50000" in error.message


def test_characters_are_bounded_per_request():
    allowance = Allowance()
    schema = {"const": "x" * 60_000}
    for i in range(4):
        allowance.written(schema, str(i))
    assert refusal(lambda: allowance.written(schema, "last")).param == "last"


def test_json_object_means_an_object():
    compiler = Compiler(VOCABULARY)
    assert accepts(compiler.json_object()(), '{"a": [1, {"b": null}]}')
    assert not accepts(compiler.json_object()(), "[1]")


def test_lark_rules_compile_or_fail():
    compiler = Compiler(VOCABULARY)
    rules = (
        'start: "<call>" args "</call>"\nargs: %json {"type": "object", "properties": {"a": {"enum": [1]}}}'
    )
    assert accepts(compiler.lark(rules, "tools")(), '<call>{"a":1}</call>')
    assert not accepts(compiler.lark(rules, "tools")(), '<call>{"a":2}</call>')
    with pytest.raises(InvalidRequestError) as raised:
        compiler.lark("start: nowhere", "tools")
    assert raised.value.param == "tools"


NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.one_of(
    st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind}),
    st.lists(st.sampled_from(["x", "y", 1, 2.5, True, None]), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    st.sampled_from(["q", 7, None, [1], {"k": "v"}]).map(lambda value: {"const": value}),
    st.integers(0, 4).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + 2}),
    st.sampled_from(["^[a-d]+$", "^(ab|cd)?x{2}$", "b"]).map(lambda p: {"type": "string", "pattern": p}),
    st.sampled_from(["date", "time", "uuid", "ipv4"]).map(lambda f: {"type": "string", "format": f}),
    st.tuples(st.integers(-50, 50), st.integers(0, 60)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
    ),
    st.integers(-5, 5).map(lambda n: {"type": "number", "exclusiveMinimum": n, "maximum": n + 0.5}),
)


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def made(properties: dict[str, Any], n_required: int, more: object) -> dict[str, Any]:
        required = list(properties)[:n_required]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": more,
        }

    more = st.sampled_from([False, {"type": "integer"}])
    return st.builds(made, st.dictionaries(NAMES, inner, max_size=3), st.integers(0, 3), more)


def _arrays(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def made(items: dict[str, Any], least: int, more: int) -> dict[str, Any]:
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + more}

    return st.builds(made, inner, st.integers(0, 2), st.integers(0, 2))


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        _objects(inner),
        _arrays(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        st.lists(inner, min_size=2, max_size=2).map(lambda options: {"oneOf": options}),
        st.lists(_objects(inner), min_size=2, max_size=2).map(lambda parts: {"allOf": parts}),
    ),
    max_leaves=6,
)


def compiled(schema: dict[str, Any]) -> Callable[[], Constraint] | None:
    """Return the compiled schema, or None if it is refused."""
    try:
        return Compiler(VOCABULARY).json_schema(schema)
    except InvalidRequestError:
        return None


@settings(max_examples=150)
@given(schema=SCHEMAS, apart=st.booleans(), seed=st.integers(0, 1000))
def test_accepted_texts_fit_their_schema(schema: dict[str, Any], apart: bool, seed: int):
    part = {"$ref": "#/$defs/part"} if apart else schema
    whole = {
        "type": "object",
        "properties": {"v": part, "w": {"anyOf": [{"type": "null"}, part]}},
        "required": ["v"],
        "additionalProperties": False,
        "$defs": {"part": schema},
    }
    begin = compiled(whole)
    assume(begin is not None)
    assert begin is not None
    rng = random.Random(seed)
    for _ in range(3):
        text = stroll(begin(), rng, 300)
        if text is not None:
            jsonschema.validate(json.loads(text), whole)
