"""Chat templates made of descriptions: ChatML around calls and results, calls as the family writes them."""

from __future__ import annotations

import json
import re

from server.formats.description import SLOT, Calls, Family

_TURNS = """\
{%- for m in messages -%}
    {%- if m.role == 'tool' -%}
        {{- '<|im_start|>tool\n' + m.content + '<|im_end|>\n' -}}
    {%- elif m.tool_calls -%}
        {{- begin -}}CALLS{{- '<|im_end|>\n' -}}
    {%- else -%}
        {{- '<|im_start|>' + m.role + '\n' -}}
        {%- if loop.first and tools -%}
            {%- for tool in tools -%}{{- tool.function | tojson + '\n' -}}{%- endfor -%}
        {%- endif -%}
        {{- m.content + '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- begin -}}{%- endif -%}
"""
_GEMMA = """\
{%- macro loose(value) -%}
    {%- if value is string -%}{{- '<|"|>' + value + '<|"|>' -}}
    {%- else -%}{{- value | tojson -}}{%- endif -%}
{%- endmacro -%}
"""
_EACH = "{%- for key, value in f.arguments.items() -%}ONE{%- endfor -%}"
_SLOTS = {
    "name": "{{- f.name -}}",
    "id": "{{- call.id -}}",
    "named_id": "functions.{{- f.name -}}:{{- loop.index0 -}}",
    "nth": "{{- loop.index -}}",
    "json": "{{- f.arguments | tojson -}}",
    "python": _EACH.replace(
        "ONE",
        "{{- (', ' if not loop.first else '') + key -}}={{- value | tojson if value is string else value -}}",
    ),
    "gemma": "{{- '{' -}}"
    + _EACH.replace("ONE", "{{- (',' if not loop.first else '') + key -}}:{{- loose(value) -}}")
    + "}",
    "key": "{{- key -}}",
    "string": "{{- 'true' if value is string else 'false' -}}",
    "type": "{{- 'string' if value is string else 'number' -}}",
    **dict.fromkeys(("value", "cdata", "nested"), "{{- value if value is string else value | tojson -}}"),
}
_WITH_ID = re.compile(r"⟦[^⟧]*⟨id⟩⟧")
_OF_MEMBERS = {
    "tool_call_id": "call.id",
    "id": "call.id",
    "arguments": "f.arguments",
    "parameters": "f.arguments",
}


def template_of(family: Family) -> str:
    """Return a template with the family's signs that shows earlier calls as its model writes them."""
    assert family.calls
    channels = family.channels
    start = channels.start if channels else "<|im_start|>assistant\n"
    each = _call(family.calls, channels.header if channels else "")
    signs = "".join(f"{{# {sign if isinstance(sign, str) else sign[0]} #}}" for sign in family.signs)
    begin = f"{{%- set begin = {json.dumps(start, ensure_ascii=False)} -%}}\n"
    return signs + begin + _GEMMA + _TURNS.replace("CALLS", each)


def _call(calls: Calls, header: str) -> str:
    one = _filled(header + calls.call, calls)
    opens, closes, between = map(_fixed, (calls.open, calls.close, calls.between))
    if calls.each:
        one, opens, closes = opens + one + closes, "", ""
    return (
        f"{opens}{{%- for call in m.tool_calls -%}}{{%- set f = call.function -%}}"
        f"{{%- if not loop.first -%}}{between}{{%- endif -%}}{one}{{%- endfor -%}}{closes}"
    )


def _filled(pattern: str, calls: Calls) -> str:
    """Return a pattern with its slots filled."""
    parts = SLOT.split(_WITH_ID.sub("", pattern).replace("⟦", "").replace("⟧", ""))
    filled = (_slot(part, calls) if i % 2 else _fixed(part) for i, part in enumerate(parts))
    return "".join(filled)


def _slot(slot: str, calls: Calls) -> str:
    if slot == "parameters":
        return _EACH.replace("ONE", _filled(calls.parameter, calls))
    if slot == "object":
        values = ((key, _OF_MEMBERS.get(key, "f.name")) for key in calls.members)
        members = (f'"{key}": {{{{- {value} | tojson -}}}}' for key, value in values)
        return "{" + ", ".join(members) + "}"
    return _SLOTS[slot]


def _fixed(text: str) -> str:
    """Return text that loses no white space and means nothing to Jinja."""
    text = text.replace("·", "")
    return "{{- " + json.dumps(text, ensure_ascii=False) + " -}}" if text else ""
