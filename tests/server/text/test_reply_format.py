"""What a chat template tells of its model."""

from __future__ import annotations

import pytest

from server.formats.families import JSON_IN_TAGS, THINK
from server.text.detokenize import marker_tokens
from server.text.reply_format import ReplyFormat, style_of
from server.text.template import CHATML
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


def test_thoughts_that_the_prompt_has_opened():
    form = ReplyFormat(THINK)
    assert form.after("<think>\n").thinking
    assert not form.after("<think>\n\n</think>\n\n").thinking
    assert not form.after("what is <think>?<|im_start|>assistant\n").thinking
    assert form.after("assistant\n<think>Hm, so", "<think>Hm, so").thinking
    assert not ReplyFormat().after("<think>").thinking


def test_marks_that_are_tokens_are_found():
    vocabulary = MarkedVocabulary()
    form = ReplyFormat(THINK, calls=JSON_IN_TAGS)
    assert marker_tokens(vocabulary, form.markers) == {
        mark: vocabulary.token(mark) for mark in ("<think>", "</think>", "<tool_call>", "</tool_call>")
    }
    assert marker_tokens(vocabulary, ["<function=", "", "<|im_end|>"]) == {}
