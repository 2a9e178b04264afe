"""Learn how a model writes calls by rendering a made-up call with its chat template. Pure.

Used for templates that no described family fits. The template renders a turn with one call, and a turn with
two calls. In these, the text around the known name, keys and values is the pattern of a call. The text around
the calls is what opens, separates and closes calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from server.formats.description import Calls, Family, Thoughts
from server.formats.json_call import ARGUMENTS_KEYS, NAMING_KEYS
from server.formats.reading import MessageReader
from server.text.message import folded
from server.text.reply_format import ReplyFormat

Render: TypeAlias = Callable[[Sequence[Mapping[str, Any]]], str]
"""Renders messages with a chat template, without the beginning of a next reply. May raise any exception,
because a template is foreign code."""

_NAME, _ID = "probe_name", "probe1234"
_ARGUMENTS = {"probe_key": "probe value", "other_key": 4711}
_SCHEMA = {"properties": {"probe_key": {"type": "string"}, "other_key": {"type": "integer"}}}
PROBE_TOOLS = (
    {
        "type": "function",
        "function": {"name": _NAME, "description": "?", "parameters": {"type": "object", **_SCHEMA}},
    },
)
_PLAIN, _THOUGHT = "PROBED TEXT", "PROBED THOUGHT"
_SIGNS = "<[{(|`"
"""A marker must contain one of these characters; otherwise a word of plain text could begin a call."""


def learned(family: Family, render: Render) -> Family:
    """Return the family with the calls that the template's output shows.

    Thoughts are taken from the output only if the family has none. What the output does not show stays
    unchanged.
    """
    before, after = _text_around_reply(render)
    thoughts = family.thoughts or _learn_thoughts(render)
    for as_text in (False, True):
        try:
            one, two = (_render_turn(render, n, before, after, as_text=as_text) for n in (1, 2))
        except Exception:  # the template refuses calls, or arguments in this form
            continue
        calls = _learn_calls(one, two)
        if calls is not None and _reads_back(calls, one, 1) and _reads_back(calls, two, 2):
            return replace(family, name="learned", calls=calls, thoughts=thoughts)
    return replace(family, thoughts=thoughts)


def _text_around_reply(render: Render) -> tuple[str, str]:
    """Return the text that the template writes before and after a reply."""
    try:
        before, _, after = render([_assistant_message(_PLAIN)]).partition(_PLAIN)
    except Exception:
        return "", ""
    return before, after


def _assistant_message(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def _render_turn(render: Render, n: int, before: str, after: str, *, as_text: bool) -> str:
    """Render an assistant's turn of n calls, and return only the text of the turn."""
    arguments = json.dumps(_ARGUMENTS) if as_text else _ARGUMENTS
    function = {"name": _NAME, "arguments": arguments}
    text = render(
        [_assistant_message("", tool_calls=[{"id": _ID, "type": "function", "function": function}] * n)]
    )
    return _text_after(text, before).removesuffix(after)


def _learn_thoughts(render: Render) -> Thoughts | None:
    """Return the markers that the template writes around thoughts, None if it shows none."""
    try:
        text = render([_assistant_message(_PLAIN, reasoning_content=_THOUGHT)])
        plain = render([_assistant_message(_PLAIN)])
    except Exception:
        return None
    before, found, after = text.partition(_THOUGHT)
    open, close = _text_after(before, plain).strip(), after.partition(_PLAIN)[0].strip()
    return Thoughts(open, close) if found and _is_marker(open) and _is_marker(close) else None


def _common_beginning(text: str, other: str) -> str:
    """Return the common beginning of two texts."""
    pairs = enumerate(zip(text, other, strict=False))
    n = next((i for i, (one, two) in pairs if one != two), min(len(text), len(other)))
    return text[:n]


def _text_after(text: str, before: str) -> str:
    """Return `text` without the beginning that it shares with `before`. Never cut a marker in two."""
    n = len(_common_beginning(text, before))
    marker = text.rfind("<", 0, n)
    return text[marker if marker > text.rfind(">", 0, n) else n :]


def _is_marker(text: str) -> bool:
    return any(sign in text for sign in _SIGNS)


def _learn_calls(one: str, two: str) -> Calls | None:
    """Return the pattern of calls, given a turn with one call and a turn with two; None if not found."""
    core = _object_call(one) or _named_call(one)
    if core is None or one.count(core.text) != 1 or two.count(core.text) != 2:
        return None
    open, _, close = one.partition(core.text)
    between = two.split(core.text)[1]
    if between.startswith(close) and between.endswith(open) and len(between) >= len(close) + len(open):
        made = replace(core.calls, open=open, close=close, each=True)
        return replace(made, between=between[len(close) : len(between) - len(open)])
    head, tail = _shared_end(open, between), _common_beginning(close, between)
    if len(head) + len(tail) > len(between):  # head and tail overlap, say in a bracket
        tail = between[: len(between) - len(head)]
    made = replace(core.calls, open=open.removesuffix(head), close=close.removeprefix(tail))
    made = replace(made, between=between[len(tail) : len(between) - len(head)])
    return replace(made, call=head + core.calls.call + tail) if _is_marker(open) else None


@dataclass(frozen=True, slots=True)
class _Core:
    """One call without the text around it."""

    text: str  # as the template wrote it
    calls: Calls  # its pattern


def _shared_end(text: str, other: str) -> str:
    """Return the common end of two texts, cut so that it starts with a whole marker."""
    shared = _common_beginning(text[::-1], other[::-1])[::-1]
    return shared[
        next((i for i, sign in enumerate(shared) if sign in _SIGNS or sign.isspace()), len(shared)) :
    ]


def _object_call(text: str) -> _Core | None:
    """Return the call if the text has it as one JSON object with name and arguments, else None."""
    for at in (i for i, sign in enumerate(text) if sign == "{"):
        found, end = _json_object(text, at)
        names = [key for key in found if found[key] == _NAME and key in NAMING_KEYS]
        values = [key for key in found if found[key] == _ARGUMENTS and key in ARGUMENTS_KEYS]
        if names and values:
            members = tuple(key for key in found if key in (*names, *values) or found[key] == _ID)
            return _Core(text[at:end], Calls("⟨object⟩", members=members))
    return None


def _json_object(text: str, at: int) -> tuple[dict[str, Any], int]:
    """Return the JSON object that begins at `at` ({} if there is none), and the index where it ends."""
    try:
        found, end = json.JSONDecoder().raw_decode(text, at)
    except ValueError:
        return {}, at
    return (cast(dict[str, Any], found), end) if isinstance(found, dict) else ({}, at)


def _named_call(text: str) -> _Core | None:
    """Return the call if the text has it as a name and then arguments in JSON or in tags, else None."""
    at = text.find(_NAME)
    if at < 0:
        return None
    start = min(at, text.find(_ID)) if _ID in text[:at] else at
    for brace in (i for i in range(at, len(text)) if text[i] == "{"):
        found, end = _json_object(text, brace)
        if found == _ARGUMENTS:
            head = text[start:brace].replace(_NAME, "⟨name⟩").replace(_ID, "⟨id⟩")
            return _Core(text[start:end], Calls(head + "⟨json⟩"))
    return _tagged_call(text[start:])


def _tagged_call(text: str) -> _Core | None:
    """Return the call if the text has it as a name and then tagged parameters, else None."""
    rest, found = text, list[str]()
    for word in (_NAME, *(str(one) for pair in _ARGUMENTS.items() for one in pair)):
        before, is_there, rest = rest.partition(word)
        if not is_there:
            return None
        found.append(before)
    _, head, middle, between, again = found
    begin = _shared_end(head, between)
    end = between[: len(between) - len(begin)]
    if middle != again or not begin.strip() or not end.strip() or not rest.startswith(end):
        return None
    call = f"⟨name⟩{head.removesuffix(begin)}⟨parameters⟩"
    n = len(text) - len(rest) + len(end)
    return _Core(text[:n], Calls(call, parameter=f"{begin}⟨key⟩{middle}⟨value⟩{end}"))


def _reads_back(calls: Calls, text: str, n: int) -> bool:
    """Return True if a reader with these patterns finds exactly n made-up calls and no content in `text`."""
    reader = MessageReader(ReplyFormat(calls=calls, functions={_NAME: _SCHEMA}))
    message = folded([*reader.feed(text), *reader.end()])
    told = [(call.name, json.loads(call.arguments)) for call in message.calls]
    return told == [(_NAME, _ARGUMENTS)] * n and not message.content.strip()
