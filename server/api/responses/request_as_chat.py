"""Turns a request to the Responses API into one for a chat completion. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from server.api.body import RefusalPart
from server.api.generation_fields import SharedFields
from server.api.responses.response_request import (
    AllowedFunctions,
    CallItem,
    CallOutputItem,
    FunctionTool,
    Item,
    MessageItem,
    NamedFunction,
    Part,
    ReasoningItem,
    ResponseRequest,
    TextFormat,
    ThoughtPart,
)
from server.errors import FieldError
from server.text.message import ToolCall

_AS_THEY_ARE = {*SharedFields.model_fields, "parallel_tool_calls"}

NAMES = (
    (re.compile(r"^messages\b.*"), "input"),
    (re.compile(r"^max_(completion_)?tokens$"), "max_output_tokens"),
    (re.compile(r"^response_format\b(\.json_schema\b)?"), "text.format"),
    (re.compile(r"^reasoning_effort$"), "reasoning.effort"),
    (re.compile(r"^(tools\.\d+|tool_choice)\.function\b"), r"\1"),
    (re.compile(r"^context_shift$"), "truncation"),
)
"""What fields of a chat completion are called here."""

Json: TypeAlias = dict[str, Any]


def messages_of(given: str | Sequence[Item]) -> list[Json]:
    """Input items as chat messages. Consecutive thoughts, text and calls of the assistant are one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Json] = []
    for item in given:
        match item:
            case MessageItem():
                said = {"role": item.role, "content": _joined(item.content, by="\n")}
                if item.role == "assistant":
                    _go_on(messages, said, fresh=("content", "tool_calls"))
                else:
                    messages.append(said)
            case ReasoningItem():
                said = {"reasoning_content": _joined(item.content or item.summary)}
                _go_on(messages, said, fresh=("reasoning_content", "content", "tool_calls"))
            case CallItem():
                call = ToolCall(item.call_id, item.name, item.arguments)
                _go_on(messages, {"tool_calls": [call.as_json]})
            case CallOutputItem():
                returned = {"role": "tool", "tool_call_id": item.call_id, "content": _joined(item.output)}
                messages.append(returned)
    return messages


def chat_of(body: ResponseRequest, messages: Sequence[Json]) -> dict[str, Any]:
    """The body of the chat completion with these messages, to be validated."""
    data = body.model_dump(include=_AS_THEY_ARE, exclude_unset=True, by_alias=True)
    system: list[Json] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    data |= {
        "messages": [*system, *messages],
        "max_completion_tokens": body.max_output_tokens,
        "context_shift": body.truncation == "auto",
        "response_format": _response_format(body.text.format),
        "logprobs": body.with_logprobs,
        "top_logprobs": body.top_logprobs,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "tools": [_tool(tool) for tool in body.tools],
        "tool_choice": _tool_choice(body.tool_choice),
    }
    return {name: value for name, value in data.items() if value is not None}


def _go_on(messages: list[Json], said: Json, fresh: Sequence[str] = ()) -> None:
    """Add to the assistant's last message, unless it has one of the fields in `fresh`."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or any(name in last for name in fresh):
        messages.append({"role": "assistant", **said})
        return
    calls = [*last.get("tool_calls", ()), *said.get("tool_calls", ())]
    messages[-1] = {**last, **said, **({"tool_calls": calls} if calls else {})}


def _joined(texts: str | Sequence[Part | RefusalPart | ThoughtPart], by: str = "") -> str:
    return texts if isinstance(texts, str) else by.join(part.text for part in texts)


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}


def _tool_choice(choice: str | NamedFunction | AllowedFunctions) -> Any:
    match choice:
        case NamedFunction():
            return {"type": "function", "function": {"name": choice.name}}
        case AllowedFunctions():
            allowed = {"mode": choice.mode, "tools": [_tool_choice(one) for one in choice.tools]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
        case _:
            return choice


def _response_format(asked: TextFormat) -> dict[str, Any] | None:
    if asked.type != "json_schema":
        return None if asked.type == "text" else {"type": asked.type}
    if asked.definition is None:
        raise FieldError("text.format.schema", "required")
    named = {"name": asked.name, "strict": asked.strict}
    schema = {name: value for name, value in named.items() if value is not None}
    return {"type": "json_schema", "json_schema": {**schema, "schema": asked.definition}}
