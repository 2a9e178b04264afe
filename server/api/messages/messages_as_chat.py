"""Convert a request to the Messages API to a chat completion request. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from server.api.body import TextPart
from server.api.generation_fields import SharedFields
from server.api.messages.messages_request import ChoiceOfTool, MessagesRequest
from server.api.messages.messages_tools import AnyTool, OfferedTools, offered_tools
from server.api.messages.request_blocks import OtherBlock
from server.api.messages.turns_as_messages import TurnMessages
from server.api.renaming import Names
from server.api.unseen import TEXT_ONLY, Senses

Json: TypeAlias = dict[str, Any]

_AS_THEY_ARE = {*SharedFields.model_fields} - {"model"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ABOUT_THE_CLIENT = "x-anthropic-billing-header:"
"""Beginning of a system block of Claude Code, which is left out. Its checksum changes with each request, so
nothing after the block could be reused from the cache."""


@dataclass(frozen=True, slots=True)
class Before:
    """A conversation as chat messages, up to a request or including the request's turns."""

    messages: Sequence[Json] = ()  # chat messages, without system messages
    system: Sequence[Json] = ()  # system messages
    tools: Sequence[AnyTool] = ()


@dataclass(frozen=True, slots=True)
class MessagesAsChat:
    """A request to the Messages API, converted to a chat completion request."""

    chat: Json  # the body of the chat completion, to be validated
    now: Before  # the conversation with this request
    tools: OfferedTools
    applied: Sequence[Json] | None = (
        None  # applied edits, as the answer lists them; None: none were asked for
    )
    summary: str | None = None  # summary that was written before the reply and begins it
    is_summary: bool = False  # the reply is a summary

    @property
    def names(self) -> Names:
        """Return patterns that rename a chat completion's fields in errors to this API's fields."""
        return (
            (re.compile(r"^max_completion_tokens$"), "max_tokens"),
            (re.compile(r"^stop\b"), "stop_sequences"),
            (re.compile(r"^messages\..*\.image_url$"), "messages"),
            (re.compile(r"^response_format\.json_schema\b"), "output_config.format"),
            (re.compile(r"^reasoning_effort$"), "output_config.effort"),
            (re.compile(r"^reasoning_budget$"), "thinking.budget_tokens"),
            (re.compile(r"^tools\.\d+.*"), lambda found: self.tools.place_of(found[0])),
        )


def as_chat(
    body: MessagesRequest, before: Before | None = None, *, senses: Senses = TEXT_ONLY
) -> MessagesAsChat:
    """Return a request to the Messages API as a chat completion.

    Args:
        body: The request.
        before: The stored conversation that the request continues, if any. Its system messages and tools
            apply if the request has none.
        senses: What the model reads beside text.

    Raises:
        FieldError: A turn cannot be served.
    """
    before = before or Before()
    given = before.tools if body.tools is None else body.tools
    system = before.system if body.system is None else _system_messages(body.system)
    tools = offered_tools(given)
    dialogue = TurnMessages(tools, before.messages, senses=senses)
    dialogue.add(body.messages)
    tools.left_out += _unserved(body)
    choice = _tool_choice(body.tool_choice, tools)
    data = body.model_dump(include=_AS_THEY_ARE, exclude_unset=True, by_alias=True)
    data |= {
        "messages": [*system, *dialogue.messages],
        "max_completion_tokens": body.max_tokens,
        "stop": body.stop_sequences or None,
        "tools": tools.chat or None,
        "tool_choice": choice,
        **_parallel_calls(body.tool_choice),
        **_response_format(body),
        **_thinking_fields(body),
    }
    chat = {name: value for name, value in data.items() if value is not None}
    return MessagesAsChat(chat, Before(dialogue.messages, system, given), tools)


def chat_of(body: MessagesRequest) -> Json:
    """Convert a request that continues no stored conversation to a chat completion's unvalidated body."""
    return as_chat(body).chat


def _response_format(body: MessagesRequest) -> Json:
    config = body.output_config
    form = (config and config.format) or body.output_format
    schema = form and {"type": "json_schema", "json_schema": {"schema": form.definition}}
    return {"response_format": schema, "reasoning_effort": _effort(body)}


def _effort(body: MessagesRequest) -> str | None:
    """Return the effort that the latest turn after the last reply sets, else the request's effort."""
    for turn in reversed(body.messages):
        if turn.role == "assistant":
            break
        if turn.output_config and turn.output_config.effort:
            return turn.output_config.effort
    return body.output_config.effort if body.output_config else None


def _unserved(body: MessagesRequest) -> Iterator[str]:
    """Yield a sentence for each option of the request that has no effect here."""
    if body.output_config and body.output_config.task_budget is not None:
        yield "output_config.task_budget: left out, since the model gets no budget: use max_tokens"
    for i, turn in enumerate(body.messages):
        for j, block in enumerate(() if isinstance(turn.content, str) else turn.content):
            asked = block.fields.get("citations") if isinstance(block, OtherBlock) else None
            if isinstance(asked, dict) and cast(Json, asked).get("enabled"):
                yield f"messages.{i}.content.{j}.citations: left out, since replies here cite nothing"


def _thinking_fields(body: MessagesRequest) -> Json:
    if (thinking := body.thinking) is None:
        return {}
    off = thinking.type == "disabled"
    return {
        "reasoning_budget": 0 if off else thinking.budget_tokens,
        "chat_template_kwargs": {"enable_thinking": not off},
    }


def _system_messages(given: str | Sequence[TextPart]) -> list[Json]:
    texts = [given] if isinstance(given, str) else [part.text for part in given]
    said = [text for text in texts if text and not text.startswith(_ABOUT_THE_CLIENT)]
    if not said:
        return []
    content = said[0] if len(said) == 1 else [{"type": "text", "text": text} for text in said]
    return [{"role": "system", "content": content}]


def _parallel_calls(choice: ChoiceOfTool | None) -> Json:
    return {"parallel_tool_calls": False} if choice and choice.disable_parallel_tool_use else {}


def _tool_choice(choice: ChoiceOfTool | None, tools: OfferedTools) -> Any:
    if choice is None:
        return None
    if choice.type != "tool":
        return _CHOICES[choice.type]
    tools.choose(choice.name or "")
    return {"type": "function", "function": {"name": choice.name}}
