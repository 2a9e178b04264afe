"""Every family's calls are read, however the reply is cut, and every family has a reply here."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest

from server.formats.description import MAX_MARKUP_HEAD, Family
from server.formats.families import FAMILIES
from server.formats.reading import MessageReader
from server.formats.values import nested
from server.text.message import Message, folded
from server.text.reply_format import ReplyFormat
from tests.server.formats.replies import FUNCTIONS, REPLIES, F, G, Reply

every = pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.family)


def read(reply: Reply, *parts: str, thinking: bool = False) -> Message:
    form = reply.form
    if thinking:
        form = form.after("?" + (form.thoughts.open if form.thoughts else ""))
    reader = MessageReader(form, lambda index: f"call_{index}")
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return folded([*pieces, *reader.end()])


def called(message: Message) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in message.calls]


def test_every_family_has_a_reply():
    assert [reply.family for reply in REPLIES] == [family.name for family in FAMILIES]
    assert set(FUNCTIONS) == {"f", "g"}


@every
def test_calls_are_read(reply: Reply):
    one = read(reply, reply.one)
    assert called(one) == [("f", json.loads(F))]
    assert not one.content + one.reasoning
    two = read(reply, reply.two)
    last = ("f", json.loads(F)) if reply.family == "harmony" else ("g", json.loads(G))
    assert called(two) == [("f", json.loads(F)), last]
    assert not two.content + two.reasoning


@every
def test_wherever_the_text_is_cut(reply: Reply):
    whole = read(reply, reply.two)
    assert read(reply, *reply.two) == whole
    for at in range(1, len(reply.two)):
        assert read(reply, reply.two[:at], reply.two[at:]) == whole, reply.two[:at]


@every
def test_begun_call_shows_no_markup(reply: Reply):
    for at in range(1, len(reply.one)):
        message = read(reply, reply.one[:at])
        assert not (message.calls and message.content), reply.one[:at]


def certain(reply: Reply) -> int:
    """Return how many characters show that a call has begun: a marker, or the name in a header."""
    form = reply.form
    assert form.calls
    if form.channels and form.channels.call:
        found = re.search(form.channels.call, reply.one)
        return found.end("name") if found else 0
    blank = len(reply.one) - len(reply.one.lstrip())
    return blank + next(len(mark) for mark in form.calls.markers if reply.one.startswith(mark, blank))


@every
def test_cut_call_reply_has_no_content(reply: Reply):
    if reply.form.calls and reply.form.calls.bare:  # it may be an answer in JSON
        return
    for at in range(certain(reply), len(reply.one)):
        reader = MessageReader(reply.form)
        cut = folded([*reader.feed(reply.one[:at]), *reader.end(cut=True)])
        assert not cut.content, reply.one[:at]
        assert reader.n_parsed == at


@every
def test_thoughts_and_an_answer(reply: Reply):
    thoughts, channels = reply.form.thoughts, reply.form.channels
    if thoughts is None:
        return
    begin = channels.start + channels.content if channels else "\n"
    text = f"\nhm, so\n{thoughts.close}{begin}Yes."
    for parts in ([text], list(text)):
        message = read(reply, *parts, thinking=True)
        assert (message.reasoning, message.content) == ("hm, so", "Yes.")
        if not channels:
            assert read(reply, thoughts.open, *parts) == message


@every
def test_a_call_within_thoughts(reply: Reply):
    calls, thoughts = reply.form.calls, reply.form.thoughts
    if thoughts is None or calls is None or not calls.markers or calls.bare or reply.form.channels:
        return
    for parts in ([f"hm\n{reply.one}"], list(f"hm\n{reply.one}")):
        message = read(reply, *parts, thinking=True)
        assert message.reasoning == "hm"
        assert called(message) == [("f", json.loads(F))]


@every
def test_text_about_calls_stays_text(reply: Reply):
    """A marker is not followed by a call."""
    calls, channels = reply.form.calls, reply.form.channels
    if calls is None or channels or not calls.markers:
        return
    text = f"Write {calls.markers[0]} !, say."
    assert read(reply, text).content == text
    assert read(reply, *text) == read(reply, text)


@every
def test_thoughts_about_calls_stay_thoughts(reply: Reply):
    calls, thoughts = reply.form.calls, reply.form.thoughts
    if thoughts is None or calls is None or not calls.markers or reply.form.channels:
        return
    thought = f"Perhaps {calls.markers[0]} !, or {calls.markers[0]} ?, who knows."
    text = f"{thought}{thoughts.close}Yes."
    for parts in ([text], list(text)):
        message = read(reply, *parts, thinking=True)
        assert (message.reasoning, message.content) == (thought, "Yes.")


@pytest.mark.parametrize("value", [[], {}, [[1], [2, 3]], {"k": [{"k": "s"}]}], ids=str)
def test_nested_equal_elements_match(value: object):
    kind = "array" if isinstance(value, list) else "object"
    assert nested(elements(value), "!", {"type": kind, "items": {"type": "array"}}) == value


def elements(value: Any) -> str:
    """Return the value as MiniMax M3 writes it, with ! for its marker."""
    if isinstance(value, list | dict):
        named = cast(dict[str, Any], value) if isinstance(value, dict) else None
        items = named.items() if named is not None else [("item", one) for one in cast(list[Any], value)]
        return "".join(f"!<{key}>{elements(one)}!</{key}>" for key, one in items)
    return str(value)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.channels], ids=lambda family: family.name)
@pytest.mark.parametrize("headed", [True, False])
def test_a_header_without_an_end_ends(family: Family, headed: bool):
    """A broken header is no text; one that is too long is."""
    assert family.channels
    start = family.channels.start
    form = ReplyFormat(family.thoughts, calls=family.calls, channels=family.channels, headed=headed)
    begun = "" if headed else family.channels.content
    for header, shown in (("name", ""), ("x" * MAX_MARKUP_HEAD, start + "x" * MAX_MARKUP_HEAD)):
        text = f"{begun}Hello{start}{header}"
        readers = MessageReader(form), MessageReader(form)
        whole = readers[0].feed(text) + readers[0].end()
        parts = [piece for letter in text for piece in readers[1].feed(letter)] + readers[1].end()
        assert folded(whole) == folded(parts) == Message("Hello" + shown)
        assert readers[0].n_parsed == readers[1].n_parsed == len(text)
