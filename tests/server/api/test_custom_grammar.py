"""Inputs of custom tools are held to their grammars, in every family's form of calls."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from server.formats.reading import MessageReader
from server.formats.spelling import written
from server.grammar.definition import custom_parameters
from server.text.message import folded
from tests.server.api.test_call_grammar import BY_FAMILY, REPLIES, Reply, Scene

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""As an agent sends it for its tool apply_patch."""
EDIT = (
    "*** Begin Patch\n*** Update File: a b.py\n@@ def f(x):\n-\tprint('\\n', \"é\")\n+    return x\n c = 1\n"
    "*** Add File: <b>.txt\n+\n*** End Patch"
)
TREE = 'start: "(" (start | /[a-z]+/)* ")"\n%ignore " "'
CASES = {
    "patch": ("lark", PATCH, EDIT, EDIT.replace("+    return", "return")),
    "tree": ("lark", TREE, "(a (bc () d))", "(a (bc)"),
    "regex": ("regex", r'^\d{2}:\d{2} "[^"\\]*"$', '12:30 "late"', "1:30"),
}
VOCABULARIES = ("bytes", "marks")


def call_of(reply: Reply, text: str) -> str:
    """Return a call of the custom tool f as the family writes it."""
    calls, arguments = reply.form.calls, json.dumps({"input": text}, ensure_ascii=False)
    assert calls
    if calls.arguments in ("json", "object"):
        return reply.one.replace('{"a": 1}', arguments)
    call = written([{"id": "a12345678", "function": {"name": "f", "arguments": arguments}}], calls)
    return reply.one[: reply.one.index(calls.markers[0])] + call if reply.form.channels else call


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.family)
def test_inputs_are_held(reply: Reply, case: str, vocabulary: str):
    syntax, definition, right, wrong = CASES[case]
    assert syntax in ("lark", "regex")
    functions = {"f": custom_parameters(syntax, definition)}
    scene = Scene(reply, "no", vocabulary)
    good, bad = call_of(reply, right), call_of(reply, wrong)
    for lark in (scene.grammar.required(functions), scene.grammar.calls_in_text(functions)):
        if lark is not None:
            assert scene.lets(lark, good), good
            assert not scene.lets(lark, bad), bad


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.family)
def test_inputs_are_read_as_they_were_written(reply: Reply):
    form = replace(reply.form, functions={"f": custom_parameters("lark", PATCH)})
    reader = MessageReader(form)
    text = call_of(reply, EDIT)
    message = folded([*reader.feed(text), *reader.end()])
    assert [json.loads(call.arguments) for call in message.calls] == [{"input": EDIT}]


def test_custom_tool_takes_any_text():
    scene = Scene(BY_FAMILY["json in tags"], "no", "bytes")
    lark = scene.grammar.required({"f": custom_parameters()})
    assert scene.lets(lark, call_of(BY_FAMILY["json in tags"], 'any\n"text"'))
