"""Calls written in every family's syntax are read as these calls."""

from __future__ import annotations

import json

import pytest

from server.formats.families import FAMILIES, JSON_IN_TAGS, KIMI
from server.formats.reading import MessageReader
from server.formats.spelling import written
from server.text.message import folded
from tests.server.formats.replies import REPLIES, F, G, Reply

CALLS = [
    {"id": f"a1234567{n}", "function": {"name": name, "arguments": given}}
    for n, (name, given) in enumerate((("f", F), ("g", G)))
]
WITH_CALLS = [
    reply for reply, family in zip(REPLIES, FAMILIES, strict=True) if family.calls and not family.channels
]


@pytest.mark.parametrize("reply", WITH_CALLS, ids=lambda reply: reply.family)
def test_written_arguments_are_read(reply: Reply):
    assert reply.form.calls
    reader = MessageReader(reply.form)
    message = folded([*reader.feed(written(CALLS, reply.form.calls)), *reader.end()])
    assert [(one.name, json.loads(one.arguments)) for one in message.calls] == [
        ("f", json.loads(F)),
        ("g", json.loads(G)),
    ]
    assert not message.content


def test_argument_spelling_and_id_stay():
    call = {"id": "functions.f:7", "function": {"name": "f", "arguments": '{"a" :1}'}}
    assert '<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{"a" :1}<' in written([call], KIMI)
    assert ">functions.f:0<" in written([{**call, "id": "call_1"}], KIMI)
    broken = {"function": {"name": "f", "arguments": '{"a"'}}
    assert '"arguments": {"a"}' in written([broken], JSON_IN_TAGS)
