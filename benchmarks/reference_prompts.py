"""The prompt that transformers' apply_chat_template would make of a conversation, by Jinja alone.

Clients write a call's arguments as text, and its content as null; which of the possible forms a template was
made for is not written anywhere. All are tried: the prompt is that of the first form that loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any

from jinja2 import Environment, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from benchmarks.format_histories import Conversation, Message
from server.text.sandbox import GenerationBlock

BOS, EOS = "<BOS>", "<EOS>"
_TAG = "CONTINUE HERE "  # as transformers does it: white space at its end tells whether the template trims


@dataclass(frozen=True, slots=True)
class Reference:
    """prompt: None if the template refuses every form; lost: texts that even the best form does not show."""

    prompt: str | None
    lost: Sequence[str] = ()


def reference(source: str, conversation: Conversation) -> Reference:
    """Raises jinja2.TemplateError when the source is not Jinja."""
    template = _environment().from_string(source)
    best, least = Reference(None), 0
    for messages in _forms(
        conversation.messages, developer="'developer'" in source or '"developer"' in source
    ):
        try:
            prompt = _rendered(template, messages, conversation)
        except Exception:  # a template is foreign code
            continue
        if _is_python(prompt):
            continue
        lost = conversation.missing(prompt)
        n_lost = 2 * len(lost) + sum(thought not in prompt for thought in conversation.thoughts)
        if best.prompt is None or n_lost < least:
            best, least = Reference(prompt, lost), n_lost
        if not least:
            break
    return best


def _is_python(prompt: str) -> bool:
    """Whether it shows a value as Python would, or parts as data: no template means to."""
    return any(sign in prompt for sign in ("{'place'", "{'type'", '{"type": "t', "None"))


def _rendered(template: Any, messages: list[Message], conversation: Conversation) -> str:
    begun, now = conversation.begun, datetime.now()
    dates = {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}
    if begun is not None:
        *messages, last = messages
        if isinstance(last["content"], list):
            raise TemplateError("transformers continues no thought that is a part")
        fields = ("reasoning_content", "thinking") if begun != "content" else (begun,)
        messages = [*messages, {**last, **{name: str(last[begun]) + _TAG for name in fields}}]
    prompt = template.render(
        messages=messages,
        tools=list(conversation.tools) or None,
        documents=None,
        add_generation_prompt=begun is None,
        bos_token=BOS,
        eos_token=EOS,
        **{"enable_thinking": True, **dates, **conversation.variables},
    )
    if begun is None:
        return prompt
    at = prompt.rindex(_TAG.strip())
    return prompt[:at] if prompt[at:].startswith(_TAG) else prompt[:at].rstrip()


def _forms(messages: Sequence[Message], *, developer: bool) -> Iterator[list[Message]]:
    """The messages with thoughts in a field, or as a part; with lists of parts as they are, or joined by a
    line break; with arguments as objects, or as text; with an empty text as the content of calls, or null."""
    for form in product((False, True), repeat=4):
        yield [_formed(one, form, developer) for one in messages]


def _formed(message: Message, form: Sequence[bool], developer: bool) -> Message:
    thought_part, joined, as_text, null = form
    new = dict(message)
    if message["role"] == "developer" and not developer:
        new["role"] = "system"
    if isinstance(message.get("content"), list) and joined:
        new["content"] = "\n".join(part["text"] for part in message["content"])
    if "tool_calls" in message:
        new["content"] = message["content"] or (None if null else "")
        new["tool_calls"] = [_with_arguments(call, as_text) for call in message["tool_calls"]]
    if "reasoning_content" in message:
        new = _with_thought(new, as_part=thought_part)
    return new


def _with_thought(message: Message, *, as_part: bool) -> Message:
    thought, content = message["reasoning_content"], message["content"]
    if not as_part:
        return {**message, "thinking": thought}
    parts = [{"type": "text", "text": content}] if content else []
    return {**message, "content": [{"type": "thinking", "thinking": thought}, *parts]}


def _with_arguments(call: dict[str, Any], as_text: bool) -> dict[str, Any]:
    function = call["function"]
    given = function["arguments"] if as_text else json.loads(function["arguments"])
    return {**call, "function": {**function, "arguments": given}}


def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    offered: dict[str, Any] = environment.globals
    offered |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _refuse(message: str) -> None:
    raise TemplateError(message)
