"""The model's own chat template: messages in, prompt text out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.errors import InvalidRequestError, StartupError
from server.text.prefix import common_prefix

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_PREFILL_MARK = "\ue000prefill\ue001"  # private use: stands for the reply's beginning while rendering

_FOLLOWING = ("\ue002", "\ue003")  # two contents of a message that follows: they begin differently

Message = Mapping[str, Any]


class _Generation(Extension):
    """{% generation %}…{% endgeneration %} marks what to train on; for rendering it is nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A Jinja template in a sandbox, with what Hugging Face's renderer offers to templates."""

    def __init__(self, source: str | None, *, bos: str = "", eos: str = "") -> None:
        """source: None falls back to ChatML. Raises StartupError when it is not Jinja."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        offered: dict[str, Any] = environment.globals
        offered |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
        offered |= {"bos_token": bos, "eos_token": eos}
        try:
            self._template = environment.from_string(source or CHATML)
        except TemplateError as error:
            raise StartupError(f"the model's chat template cannot be read: {error}") from error

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt for the next reply. If the last message is the assistant's, the reply continues it.
        Raises InvalidRequestError when the template refuses the messages."""
        if messages and messages[-1]["role"] == "assistant":
            *before, last = messages
            marked = {**last, "content": _PREFILL_MARK}
            rendered = self._render([*before, marked], add_generation_prompt=False)
            head, mark, _ = rendered.rpartition(_PREFILL_MARK)
            if mark:
                return head + str(last.get("content") or "")
        return self._render(messages, add_generation_prompt=True)

    def begun(self, messages: Sequence[Message]) -> str:
        """What the prompt begins with, whatever is still added to the last message. Raises
        InvalidRequestError."""
        *before, last = messages
        begun = str(last.get("content") or "")
        one, other = (
            self._render([*before, {**last, "content": begun + more}], add_generation_prompt=True)
            for more in _FOLLOWING
        )
        return one[: common_prefix(one, other)]

    def settled(self, messages: Sequence[Message], reply: Message) -> str | None:
        """What the prompt of the next turn begins with for sure, once the reply (an assistant message) is in
        the history, whatever the user writes then; after tool calls, whatever the tool returns. It may
        differ from prompt and generated text: templates trim, drop thoughts, write calls their own way.
        None if the template refuses that, or shows nothing of what follows."""
        for follower in _followers(reply):
            try:
                one, other = (
                    self._render(
                        [*messages, reply, {**follower, "content": content}], add_generation_prompt=True
                    )
                    for content in _FOLLOWING
                )
            except InvalidRequestError:
                continue
            n_common = common_prefix(one, other)
            if n_common < len(one):
                return one[:n_common]
        return None

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,  # templates that ask `tools is not none` expect them to be there
                documents=None,
            )
        except Exception as error:  # a template is foreign code: it may raise anything
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error


def _followers(reply: Message) -> list[Message]:
    """What may come after a reply, likeliest first, without its content."""
    user: Message = {"role": "user"}
    calls = reply.get("tool_calls")
    return [{"role": "tool", "tool_call_id": calls[0].get("id", "")}, user] if calls else [user]


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)
