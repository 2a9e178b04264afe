"""The input of a custom tool, read while the arguments of its function grow."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.custom_input import InputReader, input_of


@given(st.text(), st.booleans(), st.lists(st.integers(0, 200), max_size=8))
def test_input_is_read_however_it_arrives(text: str, ascii: bool, cuts: list[int]):
    arguments = json.dumps({"input": text}, ensure_ascii=ascii)
    places = [0, *sorted(cut % (len(arguments) + 1) for cut in cuts), len(arguments)]
    reader = InputReader()
    told = [reader.feed(arguments[a:b]) for a, b in pairwise(places)]
    assert "".join(told) + reader.end() == text


def test_input_is_told_before_it_ends():
    reader = InputReader()
    assert reader.feed('{"inp') == ""
    assert reader.feed('ut": "a') == "a"
    assert reader.feed("b\\") == "b"
    assert reader.feed('nc"') == "\nc"
    assert reader.feed("}") + reader.end() == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", ""),
        ('{"in', ""),
        ('{"input": "ab\\', "ab"),
        ('{"other": 1, "input": "x"}', "x"),
        ('{"input": 1}', '{"input": 1}'),
        ("{}", "{}"),
        ('{"input": "a\\ud800b"}', "a\ufffdb"),
        ("no json", "no json"),
    ],
)
def test_other_arguments_are_told_whole(arguments: str, told: str):
    assert input_of(arguments) == told
