"""Replies read as messages: however the text is cut, what it says is the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.formats.description import MAX_MARKUP_HEAD, Calls
from server.formats.families import JSON_IN_TAGS as HERMES
from server.formats.families import LLAMA3, THINK, family_of
from server.formats.reading import MessageReader
from server.text.message import Arguments, CallStart, Content, Message, Piece, ToolCall, coalesced, folded
from server.text.reply_format import PLAIN, ReplyFormat

NAMES = frozenset({"f", "get_weather"})
MISTRAL = family_of("[TOOL_CALLS]").calls
MISTRAL_ARGS = family_of("[TOOL_CALLS][ARGS]").calls
FUNCTIONARY = family_of("<function=f></function>").calls
CITY = '{"city": "Par\\"is}"}'
LONG = "x" * MAX_MARKUP_HEAD


def form(calls: Calls | None = None, *, thinks: bool = False, opened: bool = False) -> ReplyFormat:
    return ReplyFormat(THINK if thinks else None, opened, calls, {name: {} for name in NAMES})


def pieces_of(texts: Sequence[str], form: ReplyFormat) -> list[Piece]:
    reader = MessageReader(form, lambda index: f"call_{index}")
    pieces: list[Piece] = []
    for text in texts:
        pieces += reader.feed(text)
    pieces += reader.end()
    assert reader.n_parsed == len("".join(texts))
    return coalesced(pieces)


def read(text: str, form: ReplyFormat) -> Message:
    return folded(pieces_of([text], form))


def call(name: str = "get_weather", arguments: str = CITY, index: int = 0) -> ToolCall:
    return ToolCall(f"call_{index}", name, arguments)


def objects(key: str, *names: str) -> list[str]:
    return [f'{{"name": "{name}", "{key}": {CITY}}}' for name in names]


HERMES_CALL = f"<tool_call>\n{objects('arguments', 'get_weather')[0]}\n</tool_call>"
HERMES_F = f"<tool_call>\n{objects('arguments', 'f')[0]}\n</tool_call>"
EXAMPLES: dict[str, tuple[str, ReplyFormat, Message]] = {
    "plain": ("<think> [TOOL_CALLS] {", PLAIN, Message("<think> [TOOL_CALLS] {")),
    "hermes": (HERMES_CALL, form(HERMES), Message(calls=(call(),))),
    "hermes twice": (
        f"Let me see.\n\n{HERMES_CALL}\n{HERMES_F}\n",
        form(HERMES),
        Message("Let me see.", calls=(call(), call("f", index=1))),
    ),
    "hermes, text after it": (HERMES_CALL + "\n\nDone.", form(HERMES), Message("Done.", calls=(call(),))),
    "hermes, no function": (
        "<tool_call>\n[1, 2]</tool_call> x",
        form(HERMES),
        Message("<tool_call>\n[1, 2]</tool_call> x"),
    ),
    "hermes, no name": (
        '<tool_call>{"arguments": {}}</tool_call>',
        form(HERMES),
        Message('<tool_call>{"arguments": {}}</tool_call>'),
    ),
    "hermes, arguments first": (
        f'<tool_call>{{"arguments": {CITY}, "name": "f"}}</tool_call>',
        form(HERMES),
        Message(calls=(call("f"),)),
    ),
    "hermes, no arguments": (
        '<tool_call>{"name": "f"}</tool_call>',
        form(HERMES),
        Message(calls=(call("f", "{}"),)),
    ),
    "hermes, arguments as text": (
        f'<tool_call>{{"name": "f", "arguments": {json.dumps(CITY)}}}</tool_call>',
        form(HERMES),
        Message(calls=(call("f"),)),
    ),
    "hermes, null": (
        '<tool_call>{"name": "f", "arguments": null}</tool_call>',
        form(HERMES),
        Message(calls=(call("f", "{}"),)),
    ),
    "hermes, neither an object nor its text": (
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call><tool_call>{"arguments": "x", "name": "f"}',
        form(HERMES),
        Message(calls=(call("f", '{"arguments": "[1]"}'), call("f", '{"arguments": "x"}', index=1))),
    ),
    "hermes, two texts of objects": (
        '<tool_call>{"name": "f", "arguments": "{}{}"}</tool_call>',
        form(HERMES),
        Message(calls=(call("f", '{"arguments": "{}{}"}'),)),
    ),
    "hermes, arguments twice": (
        f'<tool_call>{{"name": "f", "arguments": {CITY}, "parameters": {{"b": 2}}}}</tool_call>',
        form(HERMES),
        Message(calls=(call("f"),)),
    ),
    "hermes, arguments twice before the name": (
        f'<tool_call>{{"parameters": {CITY}, "arguments": {{"b": 2}}, "name": "f"}}</tool_call>',
        form(HERMES),
        Message(calls=(call("f"),)),
    ),
    "hermes, lone surrogates": (
        r'<tool_call>{"name": "f\ud800", "arguments": "{\"a\": \"\udc00\"}"}</tool_call>',
        form(HERMES),
        Message(calls=(call("f?", '{"a": "?"}'),)),
    ),
    "hermes, a long key in a call": (
        f'<tool_call>{{"name": "f", "arguments": {CITY}, "{LONG}": 1}}</tool_call>',
        form(HERMES),
        Message(f'"{LONG}": 1}}</tool_call>', calls=(call("f"),)),
    ),
    "hermes, as OpenAI has it": (
        f'<tool_call>{{"type": "function", "function": {{"name": "f", "arguments": {CITY}}}}}</tool_call>',
        form(HERMES),
        Message(calls=(call("f"),)),
    ),
    "hermes, a brace short": (
        f'<tool_call>{{"name": "f", "arguments": {CITY}\n</tool_call>\n{HERMES_CALL}',
        form(HERMES),
        Message(calls=(call("f"), call(index=1))),
    ),
    "hermes, broken off": (
        '<tool_call>{"name": "f", "arguments": {"a": "b',
        form(HERMES),
        Message(calls=(call("f", '{"a": "b'),)),
    ),
    "hermes, broken off in the name": (
        '<tool_call>{"name": "f',
        form(HERMES),
        Message('<tool_call>{"name": "f'),
    ),
    "hermes, broken off in the mark": ("So <tool_c", form(HERMES), Message("So <tool_c")),
    "hermes, one is enough": (
        f"{HERMES_CALL}\n{HERMES_F} and",
        replace(form(HERMES), most_calls=1),
        Message(calls=(call(),)),
    ),
    "white space alone": (" \n ", form(HERMES), Message(" \n ")),
    "llama 3": (objects("parameters", "f")[0], form(LLAMA3), Message(calls=(call("f"),))),
    "llama 3, several": (
        "; ".join(objects("parameters", "f", "get_weather")),
        form(LLAMA3),
        Message(calls=(call("f"), call(index=1))),
    ),
    "llama 3, marked": (
        "\n<|python_tag|>" + objects("parameters", "f")[0],
        form(LLAMA3),
        Message(calls=(call("f"),)),
    ),
    "llama 3, code": (
        "<|python_tag|>print(1)",
        form(LLAMA3),
        Message("<|python_tag|>print(1)"),
    ),
    "llama 3, other JSON": ('{"a": {"name": "f"}}', form(LLAMA3), Message('{"a": {"name": "f"}}')),
    "llama 3, of another function": (
        '{"name": "g", "parameters": {}}',
        form(LLAMA3),
        Message('{"name": "g", "parameters": {}}'),
    ),
    "llama 3, text": ('I say {"name": "f"}', form(LLAMA3), Message('I say {"name": "f"}')),
    "llama 3, a long key": (f'{{"{LONG}": 1}}', form(LLAMA3), Message(f'{{"{LONG}": 1}}')),
    "llama 3, a long name": (f'{{"name": "{LONG}"}}', form(LLAMA3), Message(f'{{"name": "{LONG}"}}')),
    "mistral": (
        f"[TOOL_CALLS] [{', '.join(objects('arguments', 'f', 'get_weather'))}]",
        form(MISTRAL),
        Message(calls=(call("f"), call(index=1))),
    ),
    "mistral, newer": (
        f"Well.[TOOL_CALLS]f[ARGS]{CITY}[TOOL_CALLS]get_weather[ARGS]{CITY}",
        form(MISTRAL_ARGS),
        Message("Well.", calls=(call("f"), call(index=1))),
    ),
    "mistral, newer with ids": (
        f"[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{CITY}",
        form(MISTRAL_ARGS),
        Message(calls=(ToolCall("123456789", "f", CITY),)),
    ),
    "mistral, without a mark before arguments": (
        f"[TOOL_CALLS]f{CITY}",
        form(MISTRAL_ARGS),
        Message(calls=(call("f"),)),
    ),
    "mistral, a brace in front of its mark": (
        f"[TOOL_CALLS]f[CALL_ID]1{CITY}[ARGS]",
        form(MISTRAL_ARGS),
        Message("[ARGS]", calls=(ToolCall("1", "f", CITY),)),
    ),
    "mistral, a long name": (
        f"[TOOL_CALLS]{LONG}{CITY}",
        form(MISTRAL_ARGS),
        Message(f"[TOOL_CALLS]{LONG}{CITY}"),
    ),
    "functionary, a long name": (
        f"<function={LONG}>{CITY}",
        form(FUNCTIONARY),
        Message(f"<function={LONG}>{CITY}"),
    ),
    "mistral, broken off": ("[TOOL_CALLS]get_wea", form(MISTRAL_ARGS), Message("[TOOL_CALLS]get_wea")),
    "functionary": (
        f"<function=f>{CITY}</function><function=get_weather>{CITY}</function>",
        form(FUNCTIONARY),
        Message(calls=(call("f"), call(index=1))),
    ),
    "thoughts": (
        "<think>\nHm, <tool_call>?\n</think>\n\nYes.",
        form(HERMES, thinks=True),
        Message("Yes.", "Hm, <tool_call>?"),
    ),
    "thoughts, opened by the prompt": (
        "\nHm.\n\n</think> Yes.",
        form(thinks=True, opened=True),
        Message("Yes.", "Hm."),
    ),
    "thoughts, and a call": (
        f" <think>Hm.</think>\n{HERMES_CALL}",
        form(HERMES, thinks=True),
        Message("", "Hm.", (call(),)),
    ),
    "thoughts, and a bare call": (
        f"<think>Hm.</think>\n{objects('parameters', 'f')[0]}",
        form(LLAMA3, thinks=True),
        Message("", "Hm.", (call("f"),)),
    ),
    "thoughts, none": ("<think>\n\n</think>\n\nYes.", form(thinks=True), Message("Yes.")),
    "thoughts, unfinished": ("<think>Hm. </thi", form(thinks=True), Message("", "Hm. </thi")),
    "thoughts, not at the beginning": ("So <think>", form(thinks=True), Message("So <think>")),
    "thoughts, not even": ("<thin", form(thinks=True), Message("<thin")),
}


@pytest.mark.parametrize(("text", "form", "message"), EXAMPLES.values(), ids=EXAMPLES)
def test_reading_gives_the_parts(text: str, form: ReplyFormat, message: Message):
    assert read(text, form) == message


@pytest.mark.parametrize(("text", "form", "message"), EXAMPLES.values(), ids=EXAMPLES)
def test_character_by_character(text: str, form: ReplyFormat, message: Message):
    assert folded(pieces_of(text, form)) == message
    assert pieces_of(text, form) == pieces_of([text], form)


WORDS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<|python_tag|>", "<function=f>", "</function>", "{", "}", "[", "]", '"name"', '"arguments"',
    '"parameters"', ":", ",", ";", '"f"', '"x', "\\", '"', " ", "\n",
    "f", "12", "null", "<", "é", LONG[::2], CITY, *objects("arguments", "f"),
]  # fmt: skip
FORMS = [
    replace(form(syntax, thinks=thinks, opened=opened), most_calls=most)
    for syntax in (None, HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, FUNCTIONARY)
    for thinks, opened in ((False, False), (True, False), (True, True))
    for most in (None, 1)
]


@given(st.lists(st.sampled_from(WORDS), max_size=14), st.sampled_from(FORMS), st.data())
def test_any_text_cut_anywhere(words: list[str], form: ReplyFormat, data: st.DataObject):
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    pieces = pieces_of(parts, form)
    assert pieces == pieces_of([text], form) == pieces_of(text, form)
    begun = [piece for piece in pieces if isinstance(piece, CallStart)]
    assert [piece.index for piece in begun] == list(range(len(begun)))
    assert len(begun) <= (form.most_calls or len(begun))
    assert all(piece.name for piece in begun)
    current = -1
    for piece in pieces:
        current = piece.index if isinstance(piece, CallStart) else current
        if isinstance(piece, Arguments):
            assert piece.index == current
            assert piece.text


@given(st.lists(st.sampled_from(WORDS), max_size=14), st.sampled_from(FORMS))
def test_content_positions_are_reported(words: list[str], form: ReplyFormat):
    text = "".join(words)
    reader = MessageReader(form)
    pieces = reader.feed(text) + reader.end()
    content = "".join(character for i, character in enumerate(text) if reader.content.has(i, i + 1))
    assert content == folded(pieces).content
    assert not any(reader.content.has(i, i + 1) for i in range(reader.n_thought))


def test_arguments_are_told_as_they_grow():
    reader = MessageReader(form(HERMES))
    assert reader.feed('<tool_call>{"name": "f", "arg') != []
    assert reader.feed('uments": {"a": "1') == [Arguments(0, '{"a": "1')]
    assert reader.feed('2"') == [Arguments(0, '2"')]
    assert reader.feed("}") == [Arguments(0, "}")]


@pytest.mark.parametrize(
    ("begun", "form"),
    [
        ('{"', form(LLAMA3)),
        ('{"name": "', form(LLAMA3)),
        ('{"type": "', form(LLAMA3)),
        ("[TOOL_CALLS]", form(MISTRAL_ARGS)),
        ("[TOOL_CALLS]f[CALL_ID]", form(MISTRAL_ARGS)),
        ("<function=", form(FUNCTIONARY)),
    ],
)
def test_overlong_name_streams_as_text(begun: str, form: ReplyFormat):
    reader = MessageReader(form)
    assert reader.feed(begun) == []
    assert folded(reader.feed(LONG)).content == begun + LONG
    assert reader.feed("x") == [Content("x")]


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ("So <tool_c", form(HERMES), Message("So <tool_c")),
        ("So\n<tool_call>\n", form(HERMES), Message("So")),
        ('So <tool_call>{"name": "f', form(HERMES), Message("So")),
        (HERMES_CALL + '<tool_call>{"na', form(HERMES), Message(calls=(call(),))),
        ("<tool_call> is it", form(HERMES), Message("<tool_call> is it")),
        ("<tool_call>{1", form(HERMES), Message("<tool_call>{1")),
        ("[TOOL_CALLS]get_wea", form(MISTRAL_ARGS), Message()),
        ('{"name": "f', form(LLAMA3), Message('{"name": "f')),
    ],
)
def test_unnamed_cut_call_has_no_content(text: str, form: ReplyFormat, message: Message):
    reader = MessageReader(form, lambda index: f"call_{index}")
    assert folded([*reader.feed(text), *reader.end(cut=True)]) == message


@pytest.mark.parametrize(
    ("text", "form", "broken_off"),
    [
        ('<tool_call>{"name": "f"', form(HERMES), True),
        ('<tool_call>{"name": "f", "arguments": {"a": 1', form(HERMES), True),
        ('<tool_call>{"name": "f", "arguments": "{', form(HERMES), True),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}', form(HERMES), False),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}, "id": "', form(HERMES), False),
        (HERMES_CALL, form(HERMES), False),
        (HERMES_CALL + '<tool_call>{"name": "f", "arguments": {', form(HERMES), True),
        (HERMES_CALL + '<tool_call>{"na', form(HERMES), False),
        ('[TOOL_CALLS]f[ARGS]{"a', form(MISTRAL_ARGS), True),
        ("[TOOL_CALLS]f[ARGS]{}", form(MISTRAL_ARGS), False),
        ("Yes.", form(HERMES), False),
    ],
)
def test_whether_a_call_is_broken_off(text: str, form: ReplyFormat, broken_off: bool):
    reader = MessageReader(form)
    reader.feed(text)
    assert not reader.broken_off
    reader.end()
    assert reader.broken_off == broken_off


def test_whitespace_may_precede_a_call():
    blank = "\n" * 2 * MAX_MARKUP_HEAD
    assert read(f"Hm.{blank}{HERMES_CALL}", form(HERMES)) == Message("Hm.", calls=(call(),))
    for texts in ([f"Hm.{blank}<tool_call>", " is"], [*f"Hm.{blank}<tool_call> is"]):
        assert folded(pieces_of(texts, form(HERMES))).content == f"Hm.{blank}<tool_call> is"
