"""What a chat template tells of its model, and what messages become for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.formats.families import JSON_IN_TAGS, THINK
from server.text.adapting import adapted
from server.text.detokenize import control_tokens
from server.text.form import Form, Style, style_of
from server.text.template import CHATML, ChatTemplate, Setting
from tests import templates
from tests.server.text.vocabularies import MarkedVocabulary

FAMILIES: dict[str, tuple[str, str]] = {
    "none": (CHATML, "unknown"),
    "qwen": ("{% if tools %}<tools>{% endif %}<tool_call>{{ tool_calls }}</tool_call>", "json in tags"),
    "llama 3": (templates.LLAMA3_TOOLS, "llama 3"),
    "llama 3, built in": ("<|start_header_id|>{{ '<|python_tag|>' }} <function=", "llama 3"),
    "mistral": (templates.MISTRAL, "mistral lists"),
    "mistral, newer": ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", "mistral"),
    "functionary": ("<function={{ name }}>{{ arguments }}</function>", "functionary"),
}


@pytest.mark.parametrize(("source", "family"), FAMILIES.values(), ids=FAMILIES)
def test_families_are_known_by_their_templates(source: str, family: str):
    assert style_of(source).family.name == family


def test_what_a_template_wants_is_found_out():
    wants = {
        source: ChatTemplate(source).wants
        for source in (CHATML, templates.THINKING, templates.LLAMA3_TOOLS, templates.MISTRAL)
    }
    assert [one.tools for one in wants.values()] == [False, False, True, True]
    assert [one.calls for one in wants.values()] == [False, True, True, True]
    assert [one.objects for one in wants.values()] == [False, True, True, True]
    assert [one.short_ids for one in wants.values()] == [False, False, False, True]
    assert not ChatTemplate(templates.REASONING).wants.objects
    no_system = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ messages }}"
    assert [ChatTemplate(source).wants.system for source in (CHATML, no_system)] == [True, False]


def test_thoughts_that_the_prompt_has_opened():
    form = Form(THINK)
    assert form.after("<think>\n").thinking
    assert not form.after("<think>\n\n</think>\n\n").thinking
    assert not form.after("what is <think>?<|im_start|>assistant\n").thinking
    assert form.after("assistant\n<think>Hm, so", "<think>Hm, so").thinking
    assert not Form().after("<think>").thinking


def test_marks_that_are_control_tokens_are_found():
    vocabulary = MarkedVocabulary()
    form = Form(THINK, calls=JSON_IN_TAGS)
    assert control_tokens(vocabulary, form.marks) == {
        vocabulary.token(mark) for mark in ("<think>", "</think>", "<tool_call>", "</tool_call>")
    }
    assert control_tokens(vocabulary, ["<function=", "", "<|im_end|>"]) == frozenset()


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}
SAID: list[dict[str, Any]] = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "So.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_1", "content": "two"},
]


def test_messages_stay_as_they_are_where_nothing_is_wanted():
    assert adapted(SAID, [TOOL], Style(tools=True, calls=True)) == SAID


def test_arguments_as_objects_and_short_ids():
    told = adapted(SAID, [], Style(calls=True, objects=True, short_ids=True))
    call = told[1]["tool_calls"][0]
    assert call["function"]["arguments"] == {"a": [1]}
    assert len(call["id"]) == 9
    assert call["id"] == told[2]["tool_call_id"]
    assert call["id"].isalnum()
    assert SAID[1]["tool_calls"][0] is CALL
    broken = {**CALL, "function": {"name": "f", "arguments": '{"a"'}}
    told = adapted([{"role": "assistant", "tool_calls": [broken]}], [], Style(calls=True, objects=True))
    assert told[0]["tool_calls"][0]["function"]["arguments"] == '{"a"'


@pytest.mark.parametrize("system", [True, False])
def test_tools_in_words(system: bool):
    told = adapted(SAID, [TOOL], Style(system=system))
    assert json.dumps(TOOL) in told[0]["content"]
    assert [one["role"] for one in told] == ["system"] * system + ["user", "assistant", "user"]
    written = '<tool_call>\n{"name": "f", "arguments": {"a": [1]}}\n</tool_call>'
    assert told[-2]["content"] == f"So.\n{written}\n{written}"
    assert told[-1]["content"] == (
        "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    )


def test_tools_follow_a_system_prompt():
    told = adapted([{"role": "system", "content": "Be brief."}, *SAID], [TOOL], Style(calls=True))
    assert told[0]["content"].startswith("Be brief.\n\n# Tools")
    assert len(told) == 5


def test_variables_reach_the_template_and_do_not_replace_what_is_its_own():
    template = ChatTemplate("{{ effort }}{{ messages[0].content }}{{ add_generation_prompt }}")
    setting = Setting((), {"effort": "high ", "messages": [], "add_generation_prompt": "?"})
    assert template.render([{"role": "user", "content": "q"}], setting) == "high qTrue"
