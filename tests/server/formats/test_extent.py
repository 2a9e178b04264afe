"""How much of a text says a message: found in the text that was generated, and in what a template writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.formats.extent import extent
from server.formats.families import THINK
from server.formats.reading import MessageReader
from server.text.message import Message, ToolCall, folded
from server.text.reply_format import PLAIN, ReplyFormat
from tests.server.formats.replies import REPLIES, Reply

BEHIND = "\n<|somebody|>tool\nsunny"
THINKS = ReplyFormat(THINK)


def read(text: str, form: ReplyFormat) -> Message:
    reader = MessageReader(form)
    return folded([*reader.feed(text), *reader.end()])


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.family)
def test_call_ends_with_its_arguments(reply: Reply):
    said = read(reply.two, reply.form)
    assert said.calls
    n = extent(reply.two + BEHIND, reply.form, said)
    assert n
    assert n <= len(reply.two)
    assert read(reply.two[:n], reply.form).calls[-1].arguments == said.calls[-1].arguments
    other = replace(said, calls=(*said.calls[:-1], replace(said.calls[-1], arguments='{"a": 77}')))
    assert extent(reply.two + BEHIND, reply.form, other) is None
    assert extent(reply.one + BEHIND, reply.form, said) is None


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("Hello<end>", "Hello"),
        ("  Hello there\n<end>", "  Hello there"),
        (" Hello there<end>", " Hello there"),
        ("<think>\nWell.\n</think>\n\nHello<end>", "<think>\nWell.\n</think>\n\nHello"),
    ],
)
def test_an_answer_ends_with_its_last_letter(text: str, means: str):
    said = read(f"{means.strip()} \n", THINKS)
    assert extent(text, THINKS, said) == len(means)


def test_thoughts_that_are_dropped_are_another_message():
    said = read("<think>Well.</think>Hello", THINKS)
    assert said == Message("Hello", "Well.")
    assert extent("Hello<end>", THINKS, said) is None


@pytest.mark.parametrize("text", ["", "Hell", "Hallo"])
def test_an_answer_that_is_another_one(text: str):
    assert extent(text, PLAIN, Message("Hello!")) is None


def test_broken_call_has_no_end():
    assert extent('{"a', PLAIN, Message(calls=(ToolCall("1", "f", '{"a'),))) is None
