"""The model's own chat template: messages in, prompt text out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.cache.radix import common_prefix
from server.errors import DuoError, InvalidRequestError, StartupError
from server.text.adapting import Message, Tool, adapted
from server.text.form import Style, style_of
from server.text.room import ANY, Room
from server.text.timelimit import TimeLimit

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_PREFILL_MARK = "\ue000prefill\ue001"  # private use: stands for the reply's beginning while rendering

_FOLLOWING = ("\ue002", "\ue003")  # two contents of a message that follows: they begin differently

RENDER_S = 10.0
"""Seconds of one rendering, a hundred times what 1000 messages take on a busy machine: a template that takes
longer most likely never ends."""

_PROBE_ARGUMENTS = '{"a":"b"}'  # written as no renderer of objects would write it


@dataclass(frozen=True, slots=True)
class Setting:
    """What a prompt is rendered with besides its messages: the tools, as requests bring them, and what only
    the template knows the meaning of (enable_thinking, say)."""

    tools: Sequence[Tool] = ()
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])


BARE = Setting()


class _Generation(Extension):
    """{% generation %}…{% endgeneration %} marks what to train on; for rendering it is nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A Jinja template in a sandbox, with what Hugging Face's renderer offers to templates. Renderings raise
    TimeLimitError and, as soon as they exceed the room, ContextOverflowError."""

    def __init__(
        self, source: str | None, *, bos: str = "", eos: str = "", room: Room = ANY, seconds: float = RENDER_S
    ) -> None:
        """source: None falls back to ChatML. seconds: that a rendering may take. Raises
        StartupError when source is not Jinja."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        offered: dict[str, Any] = environment.globals
        offered |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
        offered |= {"bos_token": bos, "eos_token": eos}
        self._room = room
        self._limit = TimeLimit(seconds)
        self.source = source = source or CHATML
        self.style = style_of(source)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise StartupError(f"the model's chat template cannot be read: {error}") from error

    @cached_property
    def wants(self) -> Style:
        """What it can do: the style, and what trying finds out."""
        user, text = {"role": "user", "content": "?"}, _PROBE_ARGUMENTS
        call = {"id": "a12345678", "type": "function", "function": {"name": "f", "arguments": text}}
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        system = {"role": "system", "content": _PREFILL_MARK}
        return replace(
            self.style,
            objects=self.style.calls and not self._shows(text, [user, calling]),
            system=self._shows(_PREFILL_MARK, [system, user]),
        )

    def stop(self) -> None:
        """End renderings that run, and refuse later ones: the server ends."""
        self._limit.stop()

    def render(self, messages: Sequence[Message], setting: Setting = BARE) -> str:
        """The prompt for the next reply. If the last message is the assistant's and calls no tools, the reply
        continues it. Raises InvalidRequestError when the template refuses the messages."""
        if begun_by(messages) is not None:
            *before, last = messages
            marked = {**last, "content": _PREFILL_MARK}
            rendered = self._render([*before, marked], setting, add_generation_prompt=False)
            head, mark, _ = rendered.rpartition(_PREFILL_MARK)
            if mark:
                return head + str(last.get("content") or "")
        return self._render(messages, setting)

    def begun(self, messages: Sequence[Message], setting: Setting = BARE) -> str:
        """What the prompt begins with, whatever is still added to the last message. Raises
        InvalidRequestError."""
        *before, last = messages
        one, other = self._both(before, last, setting)
        return one[: common_prefix(one, other)]

    def settled(self, messages: Sequence[Message], reply: Message, setting: Setting = BARE) -> str | None:
        """What the prompt of the next turn begins with for sure, once the reply (an assistant message) is in
        the history, whatever the user writes then; after tool calls, whatever the tool returns. It may
        differ from prompt and generated text: templates trim, drop thoughts, write calls their own way.
        None if the template refuses that, or shows nothing of what follows."""
        user, calls = {"role": "user"}, reply.get("tool_calls")
        tool = [{"role": "tool", "tool_call_id": calls[0].get("id", "")}] if calls else []
        for follower in (*tool, user):  # likeliest first
            try:
                one, other = self._both([*messages, reply], follower, setting)
            except InvalidRequestError:
                continue
            n_common = common_prefix(one, other)
            if n_common < len(one):
                return one[:n_common]
        return None

    def _both(self, before: Sequence[Message], last: Message, setting: Setting) -> list[str]:
        """Renderings whose last message goes on differently."""
        content = str(last.get("content") or "")
        return [self._render([*before, {**last, "content": content + more}], setting) for more in _FOLLOWING]

    def _render(
        self, messages: Sequence[Message], setting: Setting, *, add_generation_prompt: bool = True
    ) -> str:
        try:
            text = self._limit.run(
                lambda: self._raw(
                    adapted(messages, setting.tools, self.wants),
                    setting,
                    add_generation_prompt=add_generation_prompt,
                )
            )
            self._room.check_bytes(len(text.encode()))  # raises for a text that cannot be tokenised, too
            return text
        except DuoError:
            raise
        except Exception as error:  # a template is foreign code: it may raise anything
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error

    def _raw(self, messages: Sequence[Message], setting: Setting, *, add_generation_prompt: bool) -> str:
        known = {"documents": None, **setting.variables, "messages": messages}
        known["add_generation_prompt"] = add_generation_prompt
        known["tools"] = list(setting.tools) or None  # a template may ask `tools is not none`
        text, n = list[str](), 0
        for part in self._template.generate(known):
            n += len(part)
            self._room.check_bytes(n)
            text.append(part)
        return "".join(text)

    def _shows(self, mark: str, messages: Sequence[Message]) -> bool:
        try:
            return mark in self._raw(messages, BARE, add_generation_prompt=False)
        except Exception:
            return False


def begun_by(messages: Sequence[Message]) -> str | None:
    """How much of the reply the client has written itself; None if it has not begun it."""
    if not messages or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
        return None
    return str(messages[-1].get("content") or "")


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
