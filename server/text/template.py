"""Render messages to a prompt with the model's own chat template."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from server.errors import ContextOverflowError, DuoError, InvalidRequestError, StartupError, TimeLimitError
from server.formats.families import JSON_IN_TAGS, UNKNOWN
from server.formats.learning import PROBE_TOOLS, learned
from server.text.adapting import adapted, text_of
from server.text.capabilities import Capabilities, Message, Tool, capabilities_of, described
from server.text.fallback import CHATML, Fallback
from server.text.guard import ClientTexts, unguarded
from server.text.reply_format import Style, style_of
from server.text.room import ANY, Room
from server.text.sandbox import Sandboxed
from server.text.timelimit import TimeLimit

logger = logging.getLogger("duo.text")

_PREFILL_MARKER = "\ue000prefill\ue001"  # private use: stands for the reply's beginning while rendering

_FOLLOWING = "\ue002"  # placeholder for a following message's content, or for text to be added

_MAX_RENDERED = 1 << 26
"""Maximum characters of a rendered prompt, even if the context is longer: no model reads more."""

_PROBING = Room(1 << 20, 1)
"""Room for probes: 100 times the 10,000 characters of a typical system message."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Inputs of a rendering, besides the messages."""

    tools: Sequence[Tool] = ()  # tools as in the request
    # variables that have a meaning only to the template, such as enable_thinking
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    continues: bool = True  # True: a last message of the assistant is the beginning of the reply
    opens: bool = True  # True: the prompt ends with the template's beginning of a reply


BARE = Setting()


@dataclass(frozen=True, slots=True)
class ReplyStart:
    """The beginning of the reply, if the client has written it."""

    text: str
    thought: bool = False  # True: the text belongs to the thoughts, not to the content

    @property
    def field(self) -> str:
        return "reasoning_content" if self.thought else "content"


class ChatTemplate:
    """A Jinja template in a sandbox. Renderings raise TimeLimitError and ContextOverflowError."""

    def __init__(
        self,
        source: str | Fallback | None,
        *,
        with_tools: str | None = None,
        bos: str = "",
        eos: str = "",
        room: Room = ANY,
        controls: Iterable[str] = (),
    ) -> None:
        """Compile a template.

        Args:
            source: The model's template, or a substitute for it; None: ChatML.
            with_tools: A separate template for conversations with tools, if the model has one.
            bos: Text of the token that begins a prompt.
            eos: Text of the token that ends a turn.
            room: Limits of a prompt's length and of a rendering's time.
            controls: Texts of control tokens, which are guarded in what clients write.

        Raises:
            StartupError: A source is not Jinja.
        """
        self._room = room
        self._controls = frozenset(controls)
        self._limit = TimeLimit(room.render_s)
        self._remake = partial(ChatTemplate, source, with_tools=with_tools, bos=bos, eos=eos)
        self._stops = source.stops if isinstance(source, Fallback) else ()
        given = source.source if isinstance(source, Fallback) else source
        self.source = source = given or with_tools or CHATML
        self._of_calls = with_tools or source
        most = min(room.n_ctx * room.longest, _MAX_RENDERED)
        self._sandboxed = Sandboxed(source, bos=bos, eos=eos, most=most)
        self._logged = set[str]()
        self._with_tools = (
            ChatTemplate(with_tools, bos=bos, eos=eos, room=room, controls=self._controls)
            if with_tools and with_tools != source
            else None
        )

    @cached_property
    def boundless(self) -> ChatTemplate:
        """Return the same template without a limit on the length, for texts that are only counted."""
        if self._room.n_ctx == ANY.n_ctx:
            return self
        return self._remake(room=replace(self._room, n_ctx=ANY.n_ctx), controls=self._controls)

    @cached_property
    def style(self) -> Style:
        """Return the style of the model. Raises TimeLimitError and ContextOverflowError."""
        shown = self._with_tools or self
        return replace(self._source_style, in_words=not shown.capabilities.tools)

    @cached_property
    def _source_style(self) -> Style:
        """Return the style found in the source; learn an unknown family's calls. Raises TimeLimitError."""
        found = replace(style_of(self._of_calls), stops=self._stops)
        if found.family.name != UNKNOWN.name or "tool_calls" not in self._of_calls:
            return found
        shown = self._with_tools or self
        family = self._limit.run(
            lambda: learned(found.family, lambda turns: shown.tried_with(turns, PROBE_TOOLS))
        )
        return replace(found, family=family)

    @cached_property
    def capabilities(self) -> Capabilities:
        """Return the message forms that the template takes, as examples show. Raises render()'s errors."""
        family = self._source_style.family
        syntax = family.calls if family.calls and not family.channels else JSON_IN_TAGS
        told = Capabilities(short_ids=self._source_style.short_ids, syntax=syntax)
        return self._limit.run(lambda: capabilities_of(self._try_rendering, self.source, told))

    @property
    def own_markers(self) -> frozenset[str]:
        """Return the thought markers allowed in clients' assistant messages. Raises TimeLimitError."""
        family = self._source_style.family
        if family.thoughts is None or family.channels:
            return frozenset()
        markers = {family.thoughts.open.strip(), family.thoughts.close.strip()}
        return self._controls & {
            marker for marker in markers if self.source.count(marker) and marker not in family.drops
        }

    @cached_property
    def _client_texts(self) -> ClientTexts:
        return ClientTexts(self._controls, self.own_markers)

    def check(self) -> None:
        """Raise StartupError if rendering the template does not end, or makes endless text."""
        try:
            _ = self.capabilities, self._with_tools and self._with_tools.check()
        except (TimeLimitError, ContextOverflowError) as error:
            raise StartupError(
                f"the model's chat template does not end ({error}): "
                "another one can be given with --chat-template-file"
            ) from error

    def stop(self) -> None:
        """End running renderings and refuse later ones, when the server shuts down."""
        self._limit.stop()
        for other in (self._with_tools, self.__dict__.get("boundless")):
            if other is not None and other is not self:
                other.stop()

    def render(self, messages: Sequence[Message], setting: Setting = BARE) -> str:
        """Return the prompt for the next reply.

        In the prompt, texts of clients are guarded (guard.py), so that none becomes a control token.

        If the last message is the assistant's and calls no tools, the reply continues its content, or its
        thoughts if there is no content yet.

        Raises:
            InvalidRequestError: The template refuses the messages.
        """
        begun = begun_by(messages, setting)
        if begun is None:
            said = without_empty_end(messages, setting)
            return self._render_adapted(said, setting, add_generation_prompt=setting.opens)
        *before, last = messages
        marked = {**last, begun.field: begun.text + _PREFILL_MARKER}
        rendered = self._render_adapted([*before, marked], setting, add_generation_prompt=False)
        head, marker, _ = rendered.rpartition(_PREFILL_MARKER)
        if marker:
            return head
        prompt, thoughts = self._render_adapted(before, setting), self.style.family.thoughts
        if begun.thought and thoughts and not prompt.rstrip().endswith(thoughts.open):
            prompt += thoughts.open
        return prompt + self._client_texts.of(begun.text, "assistant")

    def begun(self, messages: Sequence[Message], setting: Setting = BARE) -> str:
        """Return the prompt up to the end of the last message's content. Raises InvalidRequestError."""
        *before, last = messages
        text, _, _ = self._render_followed(before, last, setting).partition(_FOLLOWING)
        return text

    def next_prefix(self, messages: Sequence[Message], reply: Message, setting: Setting = BARE) -> str | None:
        """Return the prefix of the next turn's prompt that is known once `reply` is in the history.

        This prefix does not depend on the next user message or tool results. It may differ from this turn's
        prompt and generated text, because templates trim texts, drop thoughts, and write calls in their own
        way. Return None if the template refuses the messages, or shows no following message.
        """
        calls = reply.get("tool_calls") or ()
        results = [{"role": "tool", "tool_call_id": call.get("id", "")} for call in calls]
        for followers in (results, results[:1], [{"role": "user"}]):  # likeliest first
            if not followers:
                continue
            try:
                rendered = self._render_followed([*messages, reply], followers[0], setting, followers[1:])
            except InvalidRequestError:
                continue
            text, shown, _ = rendered.partition(_FOLLOWING)
            if shown:
                return text
        return None

    def _render_followed(
        self, before: Sequence[Message], last: Message, setting: Setting, after: Sequence[Message] = ()
    ) -> str:
        """Render `before`, `last` and `after`, with _FOLLOWING at the end of the content of `last`."""
        content = text_of(last.get("content")) + _FOLLOWING
        return self._render_adapted([*before, {**last, "content": content}, *after], setting)

    def _render_adapted(
        self, messages: Sequence[Message], setting: Setting, *, add_generation_prompt: bool = True
    ) -> str:
        if self._with_tools and (setting.tools or any(message.get("tool_calls") for message in messages)):
            return self._with_tools._render_adapted(
                messages, setting, add_generation_prompt=add_generation_prompt
            )
        capabilities = self.capabilities
        try:
            given = self._client_texts.of(list(setting.tools))
            told = adapted(messages, given, capabilities, self._log_once, self._client_texts)
            tools = described(given) if capabilities.needs_descriptions else given
            wanted = {key: one for key, one in setting.variables.items() if self._sandboxed.wants(key)}
            variables = {**setting.variables, **self._client_texts.of(wanted)}
            text = self._limit.run(
                lambda: self._render_raw(
                    told,
                    tools or capabilities.no_tools,
                    variables,
                    self._room,
                    add_generation_prompt=add_generation_prompt,
                )
            )
            text = self._client_texts.written(text)
            self._room.check_bytes(len(unguarded(text).encode()))  # raises an error for lone surrogates
            return text
        except DuoError:
            raise
        except Exception as error:  # a template is foreign code: it may raise anything
            self._room.check_bytes(sum(len(text_of(message.get("content"))) for message in messages))
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error

    def _render_raw(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        variables: Mapping[str, Any],
        room: Room,
        *,
        add_generation_prompt: bool,
    ) -> str:
        known = {"documents": None, **self._default_variables(tools), **variables, "messages": messages}
        known |= {"tools": tools, "add_generation_prompt": add_generation_prompt}
        text, n = list[str](), 0
        for part in self._sandboxed.generate(known):
            n += len(part)
            room.check_bytes(n)
            text.append(part)
        return "".join(text)

    def _default_variables(self, tools: Sequence[Tool] | None) -> dict[str, Any]:
        """Return variables that a client may override, set as llama-server sets them.

        Thinking is on, and templates without a clock get the date. Tools are written as text only if the
        template reads `functions`, because writing 30 tools takes as long as the rest of a rendering.
        """
        now = datetime.now().astimezone()
        dates = {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}
        known = {"enable_thinking": True, **dates}
        if self._sandboxed.wants("functions"):
            shown = [tool["function"] for tool in tools or ()]
            known["functions"] = json.dumps(shown, indent=4, ensure_ascii=False)
        return known

    def tried_with(self, turns: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Render a user message and these turns, not adapted. Raises ValueError if the template refuses."""
        text = self._try_rendering([{"role": "user", "content": "?"}, *turns], tools)
        if text is None:
            raise ValueError("refused")
        return text

    def _try_rendering(self, messages: Sequence[Message], tools: Sequence[Tool] | None) -> str | None:
        try:
            replying = messages[-1]["role"] != "assistant"
            return self._render_raw(messages, tools, {}, _PROBING, add_generation_prompt=replying)
        except ContextOverflowError:
            raise
        except Exception:
            return None

    def _log_once(self, what: str) -> None:
        """Log this sentence about an adaptation, but only once."""
        if what not in self._logged:
            self._logged.add(what)
            logger.info("the model's chat template takes %s", what)


def begun_by(messages: Sequence[Message], setting: Setting = BARE) -> ReplyStart | None:
    """Return the beginning of the reply if the client wrote one as the last message, else None."""
    if not setting.continues or not _is_said(messages):
        return None
    content, thought = text_of(messages[-1].get("content")), messages[-1].get("reasoning_content")
    if not content and not thought:
        return None
    return ReplyStart(content) if content else ReplyStart(str(thought), thought=True)


def without_empty_end(messages: Sequence[Message], setting: Setting = BARE) -> Sequence[Message]:
    """Return the messages without an empty message of the assistant at the end."""
    empty = setting.continues and _is_said(messages) and begun_by(messages, setting) is None
    return messages[:-1] if empty else messages


def _is_said(messages: Sequence[Message]) -> bool:
    """Return True if the last message is the assistant's and calls no tools."""
    return bool(messages) and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")


def continued(
    messages: Sequence[Message], reply: Message, setting: Setting = BARE
) -> tuple[Sequence[Message], Message]:
    """Return the messages before a reply, and the reply including the beginning that the client wrote."""
    if (begun := begun_by(messages, setting)) is None:
        return without_empty_end(messages, setting), reply
    whole = {**messages[-1], **reply, begun.field: begun.text + (reply.get(begun.field) or "")}
    return messages[:-1], whole
