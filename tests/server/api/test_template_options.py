"""What of a chat completion reaches the chat template: thoughts, options, contents in parts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.api.test_tools import HELLO, prompt_of, refusal, whole
from tests.templates import QWEN_CODER, REASONING

BEGUN = [*HELLO, {"role": "assistant", "content": None, "reasoning_content": "They ask"}]


async def test_begun_thoughts_are_continued():
    choice = await whole(" for Paris.\n</think>\n\nYes.", template=REASONING, messages=BEGUN)
    assert choice["message"]["reasoning_content"] == " for Paris."
    assert choice["message"]["content"] == "Yes."


def test_prompt_ends_within_thoughts():
    assert prompt_of(REASONING, messages=BEGUN, tools=None).endswith("assistant\n<think>\nThey ask")


def test_thinking_is_on_by_default():
    effort = (
        "{% for m in messages %}{{ m.content }}{% endfor %}|{{ enable_thinking }} {{ reasoning_effort }}|"
    )

    def told(**fields: Any) -> str:
        return prompt_of(effort, tools=None, **fields).split("|")[1]

    assert told() == "True "
    assert told(reasoning_effort="high") == "True high"
    assert told(reasoning_effort="none") == "False "
    assert told(chat_template_kwargs={"enable_thinking": False}) == "False "


def test_parts_follow_the_template():
    said = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert "user\na\nb<|im_end|>" in prompt_of(messages=said, tools=None)
    lists = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
    )
    assert prompt_of(lists, messages=said, tools=None) == "<a><b>"


def test_cut_calls_stay_in_history():
    def called(arguments: str) -> list[Any]:
        call = {"id": "call_abc", "function": {"name": "weather", "arguments": arguments}}
        return [*HELLO, {"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "So?"}]

    for nothing in ("", "null"):
        assert "<function=weather>\n</function>" in prompt_of(QWEN_CODER, messages=called(nothing))
        assert '{"name": "weather", "arguments": {}}' in prompt_of(messages=called(nothing))
    cut_off = '<parameter=arguments>\n{"city": "Par\n</parameter>'
    assert cut_off in prompt_of(QWEN_CODER, messages=called('{"city": "Par'))


def test_a_refusal_of_the_assistant_is_text():
    parts = [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "never"}]
    said = [HELLO[0], {"role": "assistant", "content": parts}, {"role": "user", "content": "So?"}]
    assert "assistant\nno\nnever<|im_end|>" in prompt_of(messages=said, tools=None)


@pytest.mark.parametrize("part", [{"refusal": 1}, {"refusal": None}, {"text": "no"}], ids=str)
async def test_a_refusal_without_a_text_is_refused(part: dict[str, Any]):
    error = await refusal(messages=[{"role": "assistant", "content": [{"type": "refusal", **part}]}])
    assert error["param"] == "messages.0.content.0.refusal"
