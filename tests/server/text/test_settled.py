"""What a history will begin with for sure, once the reply is part of it."""

from __future__ import annotations

import pytest

from server.text.template import CHATML, ChatTemplate, Message, Setting
from tests.templates import LLAMA3, LLAMA3_TOOLS, MISTRAL, REASONING, THINKING, TRIMMING

HELLO: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
REPLY: Message = {"role": "assistant", "content": " <think>hm</think>\n\nyes \n"}
CALLING: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
}
CONTENTS = ("", "x", " x\n", "<|im_end|>", "\ue002")


@pytest.mark.parametrize("source", [CHATML, LLAMA3, THINKING, TRIMMING])
@pytest.mark.parametrize("content", CONTENTS)
def test_the_next_prompt_begins_with_it(source: str, content: str):
    template = ChatTemplate(source, bos="<s>")
    next_prefix = template.next_prefix(HELLO, REPLY)
    assert next_prefix is not None
    following = template.render([*HELLO, REPLY, {"role": "user", "content": content}])
    assert following.startswith(next_prefix)
    assert "yes" in next_prefix


def test_chatml_settles_reply_and_beginning():
    template = ChatTemplate(CHATML)
    expected = template.render(HELLO) + str(REPLY["content"]) + "<|im_end|>\n<|im_start|>user\n"
    assert template.next_prefix(HELLO, REPLY) == expected


def test_template_changes_are_settled():
    assert str(ChatTemplate(TRIMMING).next_prefix(HELLO, REPLY)).endswith(
        "assistant\n<think>hm</think>\n\nyes<|im_end|>\n<|im_start|>user\n"
    )
    assert str(ChatTemplate(THINKING).next_prefix(HELLO, REPLY)).endswith(
        "assistant\nyes \n<|im_end|>\n<|im_start|>user\n"
    )


@pytest.mark.parametrize("content", CONTENTS)
def test_after_tool_calls_a_result_follows(content: str):
    template = ChatTemplate(THINKING)
    next_prefix = template.next_prefix(HELLO, CALLING)
    assert next_prefix is not None
    assert next_prefix.endswith("<tool_response>\n")
    result: Message = {"role": "tool", "tool_call_id": "1", "content": content}
    assert template.render([*HELLO, CALLING, result]).startswith(next_prefix)


def test_results_follow_calls_in_words():
    template = ChatTemplate(TRIMMING)
    next_prefix = template.next_prefix(HELLO, CALLING)
    assert next_prefix is not None
    assert next_prefix.endswith("</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n")
    result: Message = {"role": "tool", "tool_call_id": "1", "content": "21 degrees"}
    assert template.render([*HELLO, CALLING, result]).startswith(next_prefix)


@pytest.mark.parametrize(
    "source",
    [
        "{% if messages | length > 2 %}{{ raise_exception('one turn only') }}{% endif %}x",
        "{{ messages[0].content }}",
        "{{ messages[3].nothing.there }}",
    ],
)
def test_hiding_template_settles_nothing(source: str):
    assert ChatTemplate(source).next_prefix(HELLO, REPLY) is None


@pytest.mark.parametrize("source", [REASONING, THINKING, MISTRAL, LLAMA3_TOOLS, CHATML])
def test_settled_text_begins_next_turn(source: str):
    """The turn has thoughts, calls, ids and tools."""
    template = ChatTemplate(source)
    function = {"name": "f", "arguments": '{"a": 1}'}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    setting = Setting([tool], {"enable_thinking": True})
    reply: Message = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    next_prefix = template.next_prefix(HELLO, reply, setting)
    assert next_prefix is not None
    result: Message = {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"}
    assert template.render([*HELLO, reply, result], setting).startswith(next_prefix)
    assert template.render(HELLO, setting) == next_prefix[: len(template.render(HELLO, setting))]
    assert '"a": 1' in next_prefix
