"""Renders messages with the model's chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.errors import DuoError, InvalidRequestError, StartupError
from server.text.adapting import Message, Tool, Wants, adapted
from server.text.common_prefix import common_prefix
from server.text.form import style_of
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
    """The template's input beside messages. variables: those that only the template knows, enable_thinking
    for example."""

    tools: Sequence[Tool] = ()
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])


BARE = Setting()


class _Generation(Extension):
    """{% generation %}…{% endgeneration %} marks text to train on; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A Jinja template in a sandbox, with the functions of Hugging Face's renderer. Rendering raises
    TimeLimitError, and ContextOverflowError as soon as the text exceeds the room."""

    def __init__(
        self,
        source: str | None,
        *,
        bos: str = "",
        eos: str = "",
        room: Room = ANY,
        seconds: float = RENDER_S,
    ) -> None:
        """source: None for ChatML. seconds: for one rendering. Raises StartupError for invalid Jinja."""
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
    def wants(self) -> Wants:
        """What the template supports, found by trying."""
        return Wants(
            tools=self.style.tools,
            calls=self.style.calls,
            objects=self.style.calls and not self._takes_text_arguments(),
            short_ids=self.style.short_ids,
            system=self._takes_system(),
        )

    def stop(self) -> None:
        """End running renderings, and refuse later ones."""
        self._limit.stop()

    def render(self, messages: Sequence[Message], setting: Setting = BARE) -> str:
        """The prompt for the next reply. A last message of the assistant without calls is continued. Raises
        InvalidRequestError if the template refuses the messages."""
        if begun_by(messages) is not None:
            *before, last = messages
            marked = {**last, "content": _PREFILL_MARK}
            rendered = self._render([*before, marked], setting, add_generation_prompt=False)
            head, mark, _ = rendered.rpartition(_PREFILL_MARK)
            if mark:
                return head + str(last.get("content") or "")
        return self._render(messages, setting)

    def begun(self, messages: Sequence[Message], setting: Setting = BARE) -> str:
        """The prompt up to where more text of the last message would come. Raises InvalidRequestError."""
        *before, last = messages
        begun = str(last.get("content") or "")
        one, other = (
            self._render([*before, {**last, "content": begun + more}], setting) for more in _FOLLOWING
        )
        return one[: common_prefix(one, other)]

    def settled(self, messages: Sequence[Message], reply: Message, setting: Setting = BARE) -> str | None:
        """The certain beginning of the next turn's prompt with this reply (an assistant message), whatever
        the user or the tool says next. It may differ from the generated text: templates trim, drop thoughts,
        write calls in their own way. None if the template refuses the messages, or does not show what
        follows."""
        for follower in _followers(reply):
            try:
                one, other = (
                    self._render([*messages, reply, {**follower, "content": content}], setting)
                    for content in _FOLLOWING
                )
            except InvalidRequestError:
                continue
            n_common = common_prefix(one, other)
            if n_common < len(one):
                return one[:n_common]
        return None

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
        # templates that ask `tools is not none` expect them to be there
        tools = list(setting.tools) or None
        known |= {"tools": tools, "add_generation_prompt": add_generation_prompt}
        text, n = list[str](), 0
        for part in self._template.generate(known):
            n += len(part)
            self._room.check_bytes(n)
            text.append(part)
        return "".join(text)

    def _takes_text_arguments(self) -> bool:
        function = {"name": "f", "arguments": _PROBE_ARGUMENTS}
        call = {"id": "a12345678", "type": "function", "function": function}
        messages: list[Message] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        try:
            return _PROBE_ARGUMENTS in self._raw(messages, BARE, add_generation_prompt=False)
        except Exception:
            return False

    def _takes_system(self) -> bool:
        messages = [{"role": "system", "content": _PREFILL_MARK}, {"role": "user", "content": "?"}]
        try:
            return _PREFILL_MARK in self._raw(messages, BARE, add_generation_prompt=False)
        except Exception:
            return False


def begun_by(messages: Sequence[Message]) -> str | None:
    """The part of the reply that the client has written; None if it has not begun the reply."""
    if not messages or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
        return None
    return str(messages[-1].get("content") or "")


def _followers(reply: Message) -> list[Message]:
    """Messages that may follow a reply, the likeliest first, without content."""
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
