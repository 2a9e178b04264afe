"""Nothing that a model writes is lost, and none of its marks is shown, in replies of bad form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from server.formats.families import FAMILIES, Family
from server.formats.reading import MessageReader
from server.text.message import Message, folded
from server.text.reply_format import ReplyFormat
from tests.server.formats.replies import REPLIES, Reply

BY_NAME = {family.name: family for family in FAMILIES}
THINKING = [
    reply
    for reply in REPLIES
    if (calls := reply.form.calls)
    and reply.form.thoughts
    and calls.markers
    and not (calls.bare or reply.form.channels)
]


def form_of(family: Family, functions: dict[str, Any] | None = None, **more: Any) -> ReplyFormat:
    calls = family.calls if functions is not None else None
    known = functions or {}
    return ReplyFormat(
        family.thoughts, calls=calls, functions=known, channels=family.channels, drops=family.drops, **more
    )


def read(form: ReplyFormat, text: str, *, cut: bool = False) -> Message:
    """Return the message, which must not depend on how the text is cut."""
    found = list[Message]()
    for parts in ([text], list(text)):
        reader = MessageReader(form, lambda n: f"id{n}")
        pieces = [piece for part in parts for piece in reader.feed(part)]
        found.append(folded([*pieces, *reader.end(cut=cut)]))
    assert found[0] == found[1]
    return found[0]


def arguments_of(form: ReplyFormat, text: str) -> list[Any]:
    return [json.loads(call.arguments) for call in read(form, text).calls]


@pytest.mark.parametrize("reply", THINKING, ids=lambda reply: reply.family)
def test_thoughts_end_once(reply: Reply):
    """The model closes thoughts that a call has already ended."""
    thoughts = reply.form.thoughts
    assert thoughts
    form = replace(reply.form, thinking=True)
    for more, content in (("", ""), ("\n\nDone.", "Done.")):
        message = read(form, f"hm\n{reply.one}\n{thoughts.close}{more}")
        assert (message.reasoning, message.content, len(message.calls)) == ("hm", content, 1)


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("harmony", ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', '{"a": 1}'),
        ("harmony", "<|channel|>analysis to=python code<|message|>1 + 1<|call|>", "1 + 1"),
        ("muse", ' to=f<|message|><atem:function_calls>x<|eom|>', "<atem:function_calls>x"),
        ("functionary 3.2", 'f\n{"a": 1}', '{"a": 1}'),
    ],
)  # fmt: skip
def test_a_call_without_tools_is_text(name: str, text: str, content: str):
    assert read(form_of(BY_NAME[name], headed=False), text).content == content


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("harmony", "<|channel|>"),
        ("harmony", "<|channel|>ana"),
        ("harmony", " to=functions.we"),
        ("harmony", "<|start|>assistant<|channel|>fi"),
        ("muse", " to=us"),
        ("functionary 3.2", "al"),
    ],
)
def test_broken_header_is_no_text(name: str, text: str, cut: bool):
    assert read(form_of(BY_NAME[name], headed=False), text, cut=cut) == Message()
    assert read(form_of(BY_NAME[name], {}, headed=False), text, cut=cut) == Message()


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(
    ("name", "text"),
    [("gemma 4", "<|channel>tho"), ("gemma 4", "<|channel>"), ("kimi k3", "<|open|>resp")],
)
def test_broken_marker_is_no_text(name: str, text: str, cut: bool):
    assert read(form_of(BY_NAME[name]), text, cut=cut) == Message()
    assert read(form_of(BY_NAME[name]), f"Yes. {text}", cut=cut) == Message("Yes.")


def test_a_text_without_a_header_is_text():
    assert read(form_of(BY_NAME["harmony"], headed=False), "Hello", cut=True) == Message("Hello")
    assert read(form_of(BY_NAME["gemma 4"]), "a <", cut=True) == Message("a <")


FILE = "<tool>\n<parameter=x>1</parameter>\n</parameter>, say </parameter>\nend"
STRINGS = {"f": {"properties": {"content": {"type": "string"}, "n": {"type": "integer"}}}}


@pytest.mark.parametrize("name", ["function tags", "seed"])
def test_value_may_contain_end_tag(name: str):
    family = BY_NAME[name]
    assert family.calls
    value = "a </parameter> b\n</parameter>\nc"
    text = (
        f"{family.calls.open}<function=f>\n<parameter=content>\n{value}\n</parameter>\n"
        f"<parameter=n>\n3\n</parameter>\n</function>{family.calls.close}"
    )
    [found] = arguments_of(form_of(family, STRINGS), text)
    assert found["content"].strip() == value
    assert found["n"] == 3


@pytest.mark.parametrize("name", ["glm", "glm 4.7", "minimax m2", "minicpm 5", "deepseek v3.2", "hunyuan"])
def test_values_end_where_something_follows(name: str):
    family = BY_NAME[name]
    assert family.calls
    end = family.calls.value_end[0]
    reply = next(reply for reply in REPLIES if reply.family == name)
    text = reply.two.replace('<b>\n"1"', f'<b>{end} "1"')
    calls = arguments_of(reply.form, text)
    assert calls[1]["s"].strip() == f'it\'s <b>{end} "1"'


@pytest.mark.parametrize(
    ("name", "call", "arguments"),
    [
        ("lfm", "f(filter[status]='a', ids[]=[1, 2])", {"filter[status]": "a", "ids[]": [1, 2]}),
        ("gemma 4", 'f{filter[status]:<|"|>a<|"|>,ids[]:[1,2]}', {"filter[status]": "a", "ids[]": [1, 2]}),
        ("gemma 4", 'f{a:{b c:1,<|"|>d:e<|"|>:2}}', {"a": {"b c": 1, "d:e": 2}}),
        ("lfm", "f('a', 1)", {"arguments": "'a', 1"}),
        ("lfm", "f(a=1 +* 2)", {"arguments": "a=1 +* 2"}),
        ("gemma 4", "f{just this}", {"arguments": "just this"}),
        ("lfm", "f()", {}),
        ("gemma 4", "f{}", {}),
    ],
)
def test_no_argument_is_lost(name: str, call: str, arguments: dict[str, Any]):
    family = BY_NAME[name]
    assert family.calls
    whole = family.calls.call.replace("⟨name⟩⟨gemma⟩", call).replace("⟨name⟩(⟨python⟩)", call)
    text = (family.calls.open + whole + family.calls.close).replace("·", "")
    assert arguments_of(form_of(family, {"f": {}}), text) == [arguments]


@pytest.mark.parametrize("given", ['"ls -la"', "[1]", "5", "true"])
def test_arguments_that_are_no_object_are_kept(given: str):
    text = f'<tool_call>{{"name": "f", "arguments": {given}}}</tool_call>'
    form = form_of(BY_NAME["json in tags"], {"f": {}})
    assert arguments_of(form, text) == [{"arguments": given.strip('"')}]
    for nothing in ('""', "null", "{}"):
        assert arguments_of(form, text.replace(given, nothing)) == [{}]
