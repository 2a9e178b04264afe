"""Histories that templates were not made for: nothing is lost, and the cached prefix stays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from server.text.template import ChatTemplate, Setting, continued

CHATML = """
{%- for m in messages -%}
    {{- '<|im_start|>' + m.role + '\n' + (m.content or '') -}}
    {%- for c in m.tool_calls or [] -%}{{- '<tool_call>' + c.function | tojson -}}{%- endfor -%}
    {{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
FIRST_ONLY = """
{%- if messages[0].role in ('system', 'developer') -%}
    {{- '<|start|>developer<|message|>' + messages[0].content + '<|end|>' -}}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{%- for m in messages if m.role in ('user', 'assistant', 'tool') -%}
""" + CHATML.partition("-%}")[2]
"""As gpt-oss: what comes later is left out in silence."""
LAST_WINS = """
{%- set ns = namespace(system='') -%}
{%- for m in messages if m.role == 'system' -%}{%- set ns.system = m.content -%}{%- endfor -%}
{{- ns.system -}}
{%- for m in messages if m.role != 'system' -%}
""" + CHATML.partition("-%}")[2]
"""As DeepSeek R1's distills."""
COLLECTED = LAST_WINS.replace("set ns.system = m", "set ns.system = ns.system + '\n' + m")
"""As DeepSeek V3.1: later ones move to the front."""
ALTERNATING = """
{%- set ns = namespace(asks=true) -%}
{%- for m in messages -%}
    {%- if m.role == 'system' and not loop.first -%}{{- raise_exception('system first') -}}{%- endif -%}
    {%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) -%}
        {%- if (m.role == 'user') != ns.asks -%}{{- raise_exception('must alternate') -}}{%- endif -%}
        {%- if not m.content -%}{{- raise_exception('must say something') -}}{%- endif -%}
        {%- set ns.asks = not ns.asks -%}
    {%- endif -%}
    {%- if m.tool_calls -%}{{- '[TOOL_CALLS]' + m.tool_calls | tojson -}}
    {%- else -%}{{- '[' + m.role + ']' + m.content -}}{%- endif -%}
{%- endfor -%}
"""
"""As Mistral's."""
NO_RESULTS_ALONE = CHATML.replace(
    "{{- '<|im_start|>' + m.role",
    """
    {%- set last = loop.previtem or {'role': ''} -%}
    {%- if m.role == 'tool' and not (last.tool_calls or last.role == 'tool') -%}
        {{- raise_exception('no call') -}}
    {%- endif -%}
    {{- '<|im_start|>' + m.role""",
)
"""As gpt-oss."""
KIMI_LISTS = CHATML.replace(
    "(m.content or '')",
    "(m.content if m.content is string or m.tool_calls else m.content | map(attribute='text') | join) ~ ''",
)
"""As Kimi K2: lists of parts are shown as text, but for those beside calls."""
WITHOUT_CONTENT = CHATML.replace("(m.content or '')", "('' if m.tool_calls else m.content or '')")
"""As Llama 3's: text beside calls vanishes."""
SPEAKS_LAST = CHATML.replace("(m.content or '')", "('' if m.tool_calls else m.content or '')").replace(
    "{%- if add_generation_prompt -%}",
    "{%- set last = (messages | selectattr('tool_calls') | list or [{}])[-1] -%}"
    "{%- if last.content -%}{{- last.content -}}{%- elif add_generation_prompt -%}",
)
"""As Gemma 4: text beside a call comes after the result, and no turn is opened then."""
NEEDS_USER = """
{%- set asked = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- if not asked -%}{{- raise_exception('no query') -}}{%- endif -%}
""" + CHATML.lstrip()
"""As Qwen3.5's."""
NEEDS_IDS = CHATML.replace(
    "(m.content or '')", "('to ' + m.tool_call_id + ' ' if m.role == 'tool' else '') + (m.content or '')"
)
"""As Solar's."""
FORGETS_THOUGHTS = CHATML.replace(
    "{{- '<|im_start|>' + m.role",
    """
    {%- if m.tool_calls and m.content and m.thinking -%}{{- raise_exception('one of them') -}}{%- endif -%}
    {{- '<|im_start|>' + m.role""",
)
"""As LLM-jp's: text or thoughts may stand beside calls, and no thoughts are shown."""
_SOME = [CHATML, FIRST_ONLY, LAST_WINS, COLLECTED, ALTERNATING, NO_RESULTS_ALONE]
ALL = [*_SOME, WITHOUT_CONTENT, SPEAKS_LAST, NEEDS_USER, NEEDS_IDS, FORGETS_THOUGHTS]

TOOL = {"type": "function", "function": {"name": "fun", "description": "?", "parameters": {"type": "object"}}}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def calling(content: Any = "", n: int = 1) -> dict[str, Any]:
    calls = [
        {"id": f"a1234567{i}", "type": "function", "function": {"name": f"fun{i}", "arguments": "{}"}}
        for i in range(n)
    ]
    return said("assistant", content, tool_calls=calls)


def result(content: str, n: int = 0) -> dict[str, Any]:
    return said("tool", content, tool_call_id=f"a1234567{n}")


def assert_in_order(text: str, marks: Sequence[str]) -> None:
    places = [text.find(mark) for mark in marks]
    assert -1 not in places, f"{marks[places.index(-1)]} is lost: {text}"
    assert places == sorted(places), text


S, U, A, D = (partial(said, role) for role in ("system", "user", "assistant", "developer"))
UNNAMED = {"id": "", "type": "function", "function": {"name": "fun0", "arguments": "{}"}}
HISTORIES = {
    "two systems": [S("M1"), S("M2"), U("M3")],
    "system and developer": [S("M1"), D("M2"), U("M3")],
    "developer and system": [D("M1"), S("M2"), U("M3")],
    "later system": [S("M1"), U("M2"), A("M3"), S("M4")],
    "later developer": [U("M1"), A("M2"), D("M3")],
    "system in the middle": [U("M1"), S("M2"), A("M3"), U("M4")],
    "system after a result": [U("M1"), calling(), result("M2"), S("M3"), U("M4")],
    "empty turn": [U("M1"), A(""), U("M2")],
    "no result": [U("M1"), calling(), U("M2")],
    "one result of two": [U("M1"), calling(n=2), result("M2"), U("M3")],
    "assistant first": [A("M1"), U("M2")],
    "result first": [result("M1"), U("M2")],
    "result without call": [U("M1"), A("M2"), result("M3"), U("M4")],
    "system alone": [S("M1")],
    "no ids": [U("M1"), {**calling(), "tool_calls": [UNNAMED]}, said("tool", "M2"), U("M3")],
    "text and thoughts beside a call": [
        U("M1"),
        {**calling("M2"), "reasoning_content": "Hm."},
        result("M3"),
        U("M4"),
    ],
    "text beside a call": [U("M1"), calling("M2"), result("M3"), A("M4"), U("M5")],
}


@pytest.mark.parametrize("tools", [[], [TOOL]], ids=["plain", "tools"])
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("source", ALL)
def test_nothing_of_a_history_is_lost(source: str, history: str, tools: list[dict[str, Any]]):
    messages = HISTORIES[history]
    n = sum(len(str(message["content"])) == 2 for message in messages)
    text = ChatTemplate(source).render(messages, Setting(tools))
    assert_in_order(text, [f"M{i + 1}" for i in range(n)])


@pytest.mark.parametrize("source", [source for source in ALL if source != SPEAKS_LAST])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_later_instruction_leaves_the_prefix_alone(source: str, role: str):
    template = ChatTemplate(source)
    before = [said("system", "M1"), said("user", "M2"), said("assistant", "M3"), said("user", "M4")]
    first, second = (template.render([*before, *more]) for more in ([], [said(role, "M5")]))
    assert second.startswith(first.rpartition("M4")[0])


def test_a_call_with_text_opens_a_turn():
    template = ChatTemplate(SPEAKS_LAST)
    assert template.render([said("user", "?"), calling("text"), result("r")]).endswith(
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("content", ["", None, []])
@pytest.mark.parametrize("source", ALL)
def test_empty_beginning_is_ignored(source: str, content: Any):
    template, asked = ChatTemplate(source), [said("user", "M1")]
    begun = [*asked, said("assistant", content)]
    assert template.render(begun) == template.render(asked)
    assert continued(begun, said("assistant", "a")) == (asked, said("assistant", "a"))


@pytest.mark.parametrize("source", [KIMI_LISTS, *ALL])
def test_parts_beside_calls_are_text(source: str):
    parts = [{"type": "text", "text": "A"}]
    text = ChatTemplate(source).render([said("user", parts), calling(parts), result("r")], Setting([TOOL]))
    assert "'text'" not in text
    assert text.count("A") == 2 + text.count("AVAILABLE") + text.count("TOOL_CALLS")
