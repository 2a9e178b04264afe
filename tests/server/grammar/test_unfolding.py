"""Schemas that are small as they are written, and large for a compiler that writes references out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from server.grammar.json_schema import MAX_UNFOLDED
from server.grammar.unfolding import n_unfolded
from tests.server.grammar.test_grammar_constraint import accepts, refusal
from tests.server.grammar.test_json_schema import start

Link = Callable[[dict[str, Any]], dict[str, Any]]
OBJECT = {"type": "object"}
MET: dict[str, Link] = {
    "another schema": lambda reference: {"allOf": [reference, OBJECT]},
    "a keyword": lambda reference: {**reference, "minProperties": 0},
    "a keyword, in a choice": lambda reference: {"anyOf": [reference, OBJECT], "type": "object"},
    "a keyword, in a list": lambda reference: {"allOf": [reference], "properties": {"z": {}}},
}


def doubling(n_levels: int, link: Link) -> dict[str, Any]:
    """Return a schema whose definitions each have the next one twice."""
    definitions: dict[str, Any] = {f"a{n_levels}": OBJECT}
    for level in range(n_levels):
        inner = link({"$ref": f"#/$defs/a{level + 1}"})
        definitions[f"a{level}"] = {"type": "object", "properties": {"x": inner, "y": inner}}
    return {"$ref": "#/$defs/a0", "$defs": definitions}


@pytest.mark.parametrize("link", MET.values(), ids=MET)
def test_doubling_schema_is_refused(link: Link):
    schema = doubling(40, link)
    assert len(json.dumps(schema)) < 10_000
    error = refusal(lambda: start(schema))
    assert error.param == "json_schema"
    assert "references" in error.message
    assert n_unfolded(schema, MAX_UNFOLDED) == MAX_UNFOLDED
    assert accepts(start(doubling(3, link)), '{"x":{"y":{}}}')


def test_references_by_themselves_are_not_written_out():
    schema = doubling(40, lambda reference: {**reference, "description": "the next one"})
    assert n_unfolded(schema, MAX_UNFOLDED) < 200
    assert accepts(start(schema), '{"x":{"y":{}}}')


def test_recursive_schema_counts_once():
    tree = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    assert n_unfolded(tree, MAX_UNFOLDED) == 4
    circle = {"allOf": [{"$ref": "#"}, OBJECT]}
    assert n_unfolded(circle, MAX_UNFOLDED) < 10
