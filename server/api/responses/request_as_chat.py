"""Convert a request to the Responses API to a chat completion request. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError

from server.api.generation_fields import SharedFields
from server.api.renaming import Names
from server.api.responses.items_as_messages import Conversation
from server.api.responses.response_items import Item
from server.api.responses.response_request import (
    AllowedOwnTools,
    HostedChoice,
    NamedTool,
    ResponseRequest,
    TextFormat,
)
from server.api.responses.response_tools import ServedTools, served_tools
from server.api.unseen import TEXT_ONLY, Senses
from server.api.validation_errors import invalid
from server.errors import FieldError

_AS_THEY_ARE = {*SharedFields.model_fields, "parallel_tool_calls"}

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AsChat:
    """A request to the Responses API, converted to a chat completion request."""

    messages: Sequence[Json]  # the conversation, without instructions
    chat: Json  # the body of the chat completion, to be validated
    tools: ServedTools
    format: TextFormat  # format of the reply's text
    effort: str | None

    @property
    def names(self) -> Names:
        """Return patterns that rename a chat completion's fields in errors to this API's fields."""
        return (
            (re.compile(r"^messages\b.*"), "input"),
            (re.compile(r"^max_(completion_)?tokens$"), "max_output_tokens"),
            (re.compile(r"^response_format\b(\.json_schema\b)?"), "text.format"),
            (re.compile(r"^reasoning_effort$"), "reasoning.effort"),
            (re.compile(r"^tools\..*"), lambda found: self.tools.place_of(found[0])),
            (re.compile(r"^(tool_choice)\.(function|custom)\b"), r"\1"),
            (re.compile(r"^context_shift$"), "truncation"),
        )


def as_chat(
    body: ResponseRequest, before: Sequence[Json], items: Sequence[Item], *, senses: Senses = TEXT_ONLY
) -> AsChat:
    """Return a request to the Responses API as a chat completion.

    Args:
        body: The request.
        before: Chat messages of the earlier conversation, up to the response that the request continues.
        items: The request's input, with references replaced by the named items.
        senses: What the model reads beside text.

    Raises:
        FieldError: A tool, a choice of tools or an item cannot be served.
    """
    tools = served_tools(body.tools)
    conversation = Conversation(tools, senses=senses)
    conversation.messages = list(before)
    conversation.add(items)
    asked = _form_of(conversation, body)
    effort = conversation.effort or (body.reasoning.effort if body.reasoning else None)
    system: list[Json] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    data = body.model_dump(include=_AS_THEY_ARE, exclude_unset=True, by_alias=True)
    data |= {
        "messages": [*system, *_remembered(conversation.messages, body)],
        "max_completion_tokens": body.max_output_tokens,
        "context_shift": body.truncation == "auto",
        "response_format": _response_format(asked),
        "logprobs": body.with_logprobs,
        "top_logprobs": body.top_logprobs,
        "reasoning_effort": effort,
        "verbosity": body.text.verbosity,
        "tool_choice": _tool_choice(body, tools),
        "tools": tools.as_chat,
        "generate": False if body.prewarms else None,
    }
    chat = {name: value for name, value in data.items() if value is not None}
    return AsChat(conversation.messages, chat, tools, asked, effort)


def _remembered(messages: Sequence[Json], body: ResponseRequest) -> Sequence[Json]:
    """Return the messages, without thoughts of earlier turns if reasoning.context is current_turn.

    The current turn begins with the user's last message.
    """
    if body.reasoning is None or body.reasoning.context != "current_turn":
        return messages
    asked = max((i for i, one in enumerate(messages) if one["role"] == "user"), default=0)
    earlier = [
        {name: value for name, value in one.items() if name != "reasoning_content"}
        for one in messages[:asked]
    ]
    return [*earlier, *messages[asked:]]


def _form_of(conversation: Conversation, body: ResponseRequest) -> TextFormat:
    """Return the format of the reply's text, from the last configuration item, else from the request."""
    if conversation.format is None:
        return body.text.format
    try:
        return TextFormat.model_validate(conversation.format)
    except ValidationError as error:
        raise invalid(error, conversation.format) from None


def _tool_choice(body: ResponseRequest, tools: ServedTools) -> Any:
    choice = body.tool_choice
    match choice:
        case NamedTool():
            return _named_choice(choice, tools, "tool_choice")
        case HostedChoice():
            raise FieldError("tool_choice.type", f"this server does not run {choice.type}: name a function")
        case AllowedOwnTools():
            allowed = [
                _named_choice(one, tools, f"tool_choice.tools.{i}")
                for i, one in enumerate(choice.tools)
                if isinstance(one, NamedTool)
            ]
            if not allowed:
                raise FieldError(
                    "tool_choice.tools", "none of them can be called on this server: name a function"
                )
            return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": allowed}}
        case _:
            return choice


def _named_choice(choice: NamedTool, tools: ServedTools, place: str) -> Json:
    """Return the choice of one tool in chat completion format. A deferred tool becomes callable.

    Args:
        choice: The choice.
        tools: The request's tools.
        place: Name of the choice's field in the request.

    Raises:
        FieldError: There is no such tool.
    """
    deferred = next(
        (one for one in tools.deferred.values() if choice.name in (one.name, one.flat_name)), None
    )
    if deferred is not None:
        tools.by_name[deferred.flat_name] = tools.deferred.pop(deferred.flat_name)
    kinds = ("custom",) if choice.type == "custom" else ("function", "tool_search")
    tool = tools.called(choice.flat_name, kinds)
    if tool is None:
        raise FieldError(place, f"there is no tool of the type {choice.type} with the name {choice.name}")
    form = "custom" if tool.kind == "custom" else "function"
    return {"type": form, form: {"name": tool.flat_name}}


def _response_format(asked: TextFormat) -> Json | None:
    if asked.type != "json_schema":
        return None if asked.type == "text" else {"type": asked.type}
    if asked.definition is None:
        raise FieldError("text.format.schema", "required")
    named = {"name": asked.name, "strict": asked.strict}
    schema = {name: value for name, value in named.items() if value is not None}
    return {"type": "json_schema", "json_schema": {**schema, "schema": asked.definition}}
