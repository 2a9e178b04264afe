"""Messages as a chat template wants them. Pure.

A template that knows nothing of tools gets them, calls and results as texts in the manner of Hermes, which
models understand best that were not trained for tools.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias, cast

from server.text.form import Style

Message: TypeAlias = Mapping[str, Any]
Tool: TypeAlias = Mapping[str, Any]

_SHORT_ID = 9

INSTRUCTIONS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""As models of this family have been trained with it."""


def adapted(messages: Sequence[Message], tools: Sequence[Tool], wants: Style) -> list[Message]:
    told = [_adapted(message, wants) for message in messages]
    if not wants.calls:
        told = _written_out(told)
    if tools and not wants.tools:
        told = _instructed(told, tools, wants)
    return told


def _adapted(message: Message, wants: Style) -> Message:
    new = dict(message)
    if message.get("tool_calls"):
        new["tool_calls"] = [_call(call, wants) for call in message["tool_calls"]]
    if wants.short_ids and message.get("tool_call_id"):
        new["tool_call_id"] = _short(message["tool_call_id"])
    return new


def _call(call: Mapping[str, Any], wants: Style) -> dict[str, Any]:
    new = dict(call)
    if wants.objects:
        function = dict(call["function"])
        function["arguments"] = _object(function["arguments"])
        new["function"] = function
    if wants.short_ids and call.get("id"):
        new["id"] = _short(call["id"])
    return new


def _object(arguments: Any) -> Any:
    """What is no JSON object, or none that a prompt can show (a lone surrogate, say), stays as it is."""
    try:
        value = json.loads(arguments)
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return arguments
    return cast(Any, value) if isinstance(value, dict) else arguments


def _short(id: str) -> str:
    fits = len(id) == _SHORT_ID and id.isascii() and id.isalnum()
    return id if fits else hashlib.sha256(id.encode()).hexdigest()[:_SHORT_ID]


def _written_out(messages: Sequence[Message]) -> list[Message]:
    """Calls as the assistant's text, results as the user's; results that follow each other in one message."""
    told: list[Message] = []
    for of_tools, run in groupby(messages, key=lambda message: message["role"] == "tool"):
        if of_tools:
            results = (f"<tool_response>\n{one.get('content') or ''}\n</tool_response>" for one in run)
            told.append({"role": "user", "content": "\n".join(results)})
        else:
            told += [_spelled(message) if message.get("tool_calls") else message for message in run]
    return told


def _spelled(message: Message) -> Message:
    said = [str(message.get("content") or "")]
    for call in message["tool_calls"]:
        name, arguments = json.dumps(call["function"]["name"]), call["function"]["arguments"]
        said.append(f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>')
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(part for part in said if part)}


def _instructed(messages: list[Message], tools: Sequence[Tool], wants: Style) -> list[Message]:
    """The tools behind the system prompt, or before what the user says first."""
    text = INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    role = "system" if wants.system else "user"
    if not messages or messages[0]["role"] != role:
        return [{"role": role, "content": text}, *messages]
    first, *rest = messages
    before, after = (first.get("content"), text) if wants.system else (text, first.get("content"))
    return [{**first, "content": "\n\n".join(str(part) for part in (before, after) if part)}, *rest]
