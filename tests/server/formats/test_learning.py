"""A template that no description fits teaches how its model calls."""

from __future__ import annotations

import json

import pytest

from server.formats.reading import MessageReader
from server.text.message import folded
from server.text.reply_format import ReplyFormat
from server.text.template import ChatTemplate

TURNS = """
{%- for m in messages -%}
{{- '#' ~ m.role ~ '#' -}}
{%- if m.reasoning_content -%}{{- '(*muse*)' ~ m.reasoning_content ~ '(*/muse*)' -}}{%- endif -%}
{{- m.content -}}
{%- if m.tool_calls -%}CALLS{%- endif -%}
{{- '#end#' -}}
{%- endfor -%}
"""
EACH = "{%- for c in m.tool_calls -%}{%- set f = c.function -%}ONE{%- endfor -%}"
JSON = "{{- f.arguments | tojson -}}"
PARAMETERS = "{%- for k, v in f.arguments.items() -%}ONE{%- endfor -%}"
WRITTEN = {
    "objects in tags": EACH.replace(
        "ONE", "<do>{{- {'name': f.name, 'arguments': f.arguments} | tojson -}}</do>"
    ),
    "a list": "{{- '<<calls>>[' -}}"
    + EACH.replace(
        "ONE", "{{- {'name': f.name, 'parameters': f.arguments} | tojson -}}{{- '' if loop.last else ', ' -}}"
    )
    + "{{- ']<</calls>>' -}}",
    "a name in front": EACH.replace("ONE", "<call:{{- f.name -}}>" + JSON + "</call>"),
    "a section, with ids": "<all>"
    + EACH.replace("ONE", "<one>{{- c.id -}}<is>{{- f.name -}}<with>" + JSON + "</one>")
    + "</all>",
    "parameters": EACH.replace(
        "ONE",
        '<run what="{{- f.name -}}">'
        + PARAMETERS.replace("ONE", '<give as="{{- k -}}">{{- v if v is string else v | tojson -}}</give>')
        + "</run>",
    ),
}


def reader(body: str) -> tuple[ChatTemplate, ReplyFormat]:
    template = ChatTemplate(TURNS.replace("CALLS", body))
    family = template.style.family
    functions = {
        "weigh": {
            "type": "object",
            "properties": {"what": {"type": "string"}, "n": {"type": "integer"}},
        }
    }
    return template, ReplyFormat(family.thoughts, calls=family.calls, functions=functions)


@pytest.mark.parametrize("body", WRITTEN.values(), ids=WRITTEN)
def test_template_writing_is_read(body: str):
    template, form = reader(body)
    assert template.style.family.name == "learned"
    given = [{"what": "a <b>\n'c'", "n": 3}, {"what": "x", "n": 4}]
    calls = [
        {"id": f"id{i}", "type": "function", "function": {"name": "weigh", "arguments": json.dumps(one)}}
        for i, one in enumerate(given)
    ]
    turn = {"role": "assistant", "content": "So: ", "tool_calls": calls}
    text = template.render([{"role": "user", "content": "?"}, turn])
    text = text.partition("#assistant#")[2].partition("#end#")[0]
    for parts in ([text], list(text)):
        found = MessageReader(form)
        message = folded([*(piece for part in parts for piece in found.feed(part)), *found.end()])
        assert [(call.name, json.loads(call.arguments)) for call in message.calls] == [
            ("weigh", one) for one in given
        ]
        assert message.content.strip() == "So:"


def test_thoughts_are_learned_too():
    _, form = reader(WRITTEN["parameters"])
    assert form.thoughts
    assert (form.thoughts.open, form.thoughts.close) == ("(*muse*)", "(*/muse*)")


@pytest.mark.parametrize(
    "body",
    ["", "{{- m.tool_calls | length -}}", "{{- 1 / 0 -}}", EACH.replace("ONE", "{{- f.name -}}" + JSON)],
)
def test_unlearnable_template_is_left(body: str):
    template, _ = reader(body)
    assert template.style.family.name == "unknown"
