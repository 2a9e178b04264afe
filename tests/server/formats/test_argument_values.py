"""Values of arguments that are no JSON where the model writes them: told as the schema types them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from server.formats.families import FAMILIES
from server.formats.reading import MessageReader
from server.formats.spelling import written
from server.text.message import folded
from tests.server.formats.replies import REPLIES, Reply

OWN_SYNTAX = [
    reply
    for reply, family in zip(REPLIES, FAMILIES, strict=True)
    if family.calls and not family.channels and family.calls.arguments in ("parameters", "python", "gemma")
]
own_syntax = pytest.mark.parametrize("reply", OWN_SYNTAX, ids=lambda reply: reply.family)


def _refused(word: str) -> NoReturn:
    raise AssertionError(f"{word} is no JSON")


def told(reply: Reply, text: str, schema: dict[str, Any]) -> Any:
    """The value of v where a model writes this text for a value that is no string."""
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
def test_a_number_that_json_has_not_is_text(reply: Reply, word: str, schema: dict[str, Any]):
    assert told(reply, word, of(schema)) == word


@pytest.mark.parametrize("word", ["NaN", "-Infinity", "1e999"])
@own_syntax
def test_a_number_within_a_list_that_json_has_not_is_text(reply: Reply, word: str):
    if reply.form.calls and reply.form.calls.arguments == "gemma":
        text = f'[1,{word},<|"|>x<|"|>]'
    else:
        text = f"[1, {word}, 'x']"
    assert told(reply, text, of({"type": "array"})) == [1, word, "x"]
