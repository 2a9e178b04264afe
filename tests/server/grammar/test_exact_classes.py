"""Classes of characters in patterns: a reply has the characters that a class allows, and no others."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.grammar.exact_classes import json_expression
from tests.server.grammar.test_grammar_constraint import accepts
from tests.server.grammar.test_json_schema import start

CHARACTERS = '"\\\n\t\x01 ab/[]^-é日'
CLASSES = [
    *('[^"]', r"[^\\]", r'[^"\\]', r'[^"\n]', r"[^\s]", r'[^\w"]', r'[^\]"]', '[^"-/]', '[^^"]', "[^-a]"),
    *(r"\[", r'[ab"]', r'(?:[^"\\]|\\.)', r'\\[^"]', '[^"]/[^"]', '[^]"]', r"\S"),
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CLASSES), st.text(CHARACTERS, min_size=1, max_size=3))
def test_classes_allow_what_they_say(characters: str, text: str):
    schema = {"type": "string", "pattern": f"^(?:{characters})+$"}
    fits = re.fullmatch(f"(?:{characters})+", text, re.ASCII) is not None  # as in JavaScript
    assert accepts(start(schema), json.dumps(text, ensure_ascii=False)) is fits


@pytest.mark.parametrize(
    "pattern", ['^[^"]+$', r"^[^\\\"]+$", '^[^[:alpha:]"]+$', '^[^a[bc]"]+$', r"^\P{P}+$"]
)
def test_escaped_quotes_are_excluded(pattern: str):
    assert accepts(start({"type": "string", "pattern": pattern}), '"1"')
    assert not accepts(start({"type": "string", "pattern": pattern}), r'"1\""')


def test_names_of_members_are_held():
    schema: dict[str, Any] = {"type": "object", "patternProperties": {'^[^"]+$': {}}}
    schema["additionalProperties"] = False
    assert accepts(start(schema), '{"a": 1}')
    assert not accepts(start(schema), r'{"\"": 1}')


def test_shared_patterns_are_held():
    schema = {"$defs": {"x": {"pattern": '^[^"]$', "type": "string"}}, "items": {"$ref": "#/$defs/x"}}
    assert accepts(start(schema), '["a", "b"]')
    assert not accepts(start(schema), r'["a", "\""]')


def test_values_are_not_patterns():
    schema = {"properties": {"pattern": {"const": '[^"]'}}, "required": ["pattern"], "type": "object"}
    assert accepts(start(schema), r'{"pattern": "[^\"]"}')


@pytest.mark.parametrize("begin", ["[^", "[^[", "[^a[^", "[^\\", "\\[", "\\P{"])
def test_open_classes_take_linear_time(begin: str):
    begun = time.process_time()
    json_expression({"pattern": begin * 20_000}, {})
    assert time.process_time() - begun < 1  # 1 s: quadratic time is 10 s and more
