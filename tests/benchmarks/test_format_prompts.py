"""Prompts compared with those of plain Jinja."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import format_prompts
from benchmarks.format_histories import CONVERSATIONS, Conversation
from benchmarks.reference_prompts import reference
from server.text.template import CHATML, ChatTemplate
from tests.templates import LLAMA3_TOOLS, MISTRAL, REASONING, THINKING

NAMED = {one.name: one for one in CONVERSATIONS}
PICKY = (
    "{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no') }}{% endif %}"
    "{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
)


def test_prompts_of_templates_that_are_about(tmp_path: Path):
    sources = {"a": CHATML, "b": LLAMA3_TOOLS, "c": MISTRAL, "d": REASONING, "e": THINKING, "f": PICKY}
    for name, source in sources.items():
        (tmp_path / f"{name}.jinja").write_text(source)
    (tmp_path / "README.md").write_text("no template")
    found = list(format_prompts.report(tmp_path))
    assert [one.template for one in found] == list(sources)
    assert [(one.conversation, one.why) for template in found for one in template.prompts if one.why] == []
    assert not found[4].prompts[0].adapted
    assert found[5].prompts[1].adapted


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("plain", "user: What is it like in Oslo & Rome? \n"),
        ("plain", "assistant: What is it like in Oslo & Rome?\n"),
        ("system", "user: What is it like in Oslo & Rome?\n"),
    ],
)
def test_another_prompt_is_wrong(name: str, prompt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def render(*_: Any) -> str:
        return prompt

    (tmp_path / "picky.jinja").write_text(PICKY)
    monkeypatch.setattr(ChatTemplate, "render", render)
    [template] = format_prompts.report(tmp_path)
    assert [one.why for one in template.prompts if one.conversation == name] != [None]
    assert not template.right


def test_what_is_evaluated_in_advance_has_to_be_in_the_next_prompt(tmp_path: Path):
    (tmp_path / "counting.jinja").write_text("{{ messages[-1].content | length }}" + CHATML)
    [template] = format_prompts.report(tmp_path)
    why = {one.conversation: one.why for one in template.prompts}
    assert why["system"] is None
    assert str(why["turns"]).startswith("known is")


def test_texts_out_of_order_are_missing():
    turns = NAMED["turns"]
    texts = [str(message["content"]) for message in turns.messages]
    assert turns.missing(" ".join(texts)) == []
    assert turns.missing(" ".join([*texts[:2], texts[3], texts[2], *texts[4:]])) == [texts[3]]
    assert NAMED["tools"].missing("Answer in one sentence. What is it like in Oslo & Rome?") == [
        "Tells the weather of a place.",
        "Tells the traffic of a place.",
    ]


def test_the_reference_takes_the_form_that_loses_nothing():
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}%s{% endfor %}"
    shown = "{% for m in messages %}" + calls + "{% endfor %}"
    call: Conversation = replace(NAMED["call"], messages=NAMED["call"].messages[2:3], tools=())
    as_object = shown.replace("%s", "{{ c.function.arguments.place }}{{ c.function.arguments.days }}")
    assert reference(as_object, call).prompt == "weatherOslo2"
    as_text = shown.replace("%s", "{{ c.function.arguments }}")
    assert reference(as_text, call).prompt == 'weather{"place": "Oslo", "days": 2}'
    lost = reference(shown.replace("%s", ""), call)
    assert lost.lost == ["Oslo", "2"]
