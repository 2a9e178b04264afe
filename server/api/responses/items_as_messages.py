"""Convert the items of a request to the Responses API to chat messages. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias, cast

from server.api.body import RefusalPart, type_of
from server.api.responses.response_items import (
    CallItem,
    CallOutputItem,
    CompactionItem,
    ConfigurationItem,
    CustomCallItem,
    FoundToolsItem,
    Item,
    MessageItem,
    OtherItem,
    Part,
    ReasoningItem,
    UnseenPart,
)
from server.api.responses.response_tools import SEARCH, ServedTools, flat_name
from server.api.sealed import decode_thoughts, summary_in
from server.api.unseen import TEXT_ONLY, Senses, sensed, stand_in, text_of
from server.errors import FieldError
from server.text.message import ToolCall

Json: TypeAlias = dict[str, Any]

SUMMARY = "What was said before, in short:\n"
"""Beginning of the message that replaces a compacted conversation."""
_CALLS = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
    "computer_call": ("computer", "action"),
    "tool_search_call": (SEARCH, "arguments"),
    "code_interpreter_call": ("code_interpreter", "code"),
    "file_search_call": ("file_search", "queries"),
    "mcp_call": ("", "arguments"),
    "program": ("program", "code"),
}
"""For each type of item that is a call: the function's name, and the item's field with the arguments.

With the name "", the item's fields server_label and name give the name.
"""
_RESULTS = ("output", "outputs", "result", "results", "error")
"""Fields of an item that may hold a tool's result."""
_SILENT = frozenset(
    {
        *("web_search_call", "image_generation_call"),
        *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    }
)
"""Types of items that have nothing for the model to read."""


class Conversation:
    """Chat messages, built item by item."""

    def __init__(self, tools: ServedTools, *, senses: Senses = TEXT_ONLY) -> None:
        """Begin without messages.

        Args:
            tools: The request's tools; items may add tools.
            senses: What the model reads beside text.
        """
        self.messages: list[Json] = []
        self.effort: str | None = None  # effort in the last configuration item that has one
        self.format: Json | None = None  # text format in the last configuration item that has one
        self._tools = tools
        self._senses = senses

    def add(self, items: Sequence[Item]) -> None:
        """Add these items. Consecutive thoughts, text and calls of the assistant become one message.

        Raises:
            FieldError: A message after the last reply contains a part that the model cannot read, or an item
                cannot be served.
        """
        _refuse_unread(items, self._senses)
        for i, item in enumerate(items):
            self._add_item(item, f"input.{i}")

    def _add_item(self, item: Item, place: str) -> None:
        match item:
            case MessageItem():
                self._add_message(item)
            case ReasoningItem():
                self._add_thoughts(item)
            case CallItem():
                self._add_call(item.call_id, flat_name(item.namespace, item.name), item.arguments)
            case CustomCallItem():
                arguments = json.dumps({"input": item.input}, ensure_ascii=False)
                self._add_call(item.call_id, flat_name(item.namespace, item.name), arguments)
            case CallOutputItem():
                self._add_result(item.call_id, self._returned(item.output))
            case FoundToolsItem():
                self._show_tools(item, self._tools.load(item.tools, f"{place}.tools"))
            case CompactionItem():
                if summary := summary_in(item.encrypted_content):
                    self._begin_from(summary)
            case ConfigurationItem():
                self.effort = item.reasoning.effort if item.reasoning else self.effort
                self.format = item.text.get("format") if item.text else self.format
            case OtherItem():
                self._add_other(item, place)
            case _:
                raise AssertionError("references are resolved before")

    def _begin_from(self, summary: str) -> None:
        """Drop replies, tools' results and older summaries; add this summary as the user's message."""
        self.messages = [
            message
            for message in self.messages
            if message["role"] not in ("assistant", "tool")
            and not (isinstance(message["content"], str) and message["content"].startswith(SUMMARY))
        ]
        self.messages.append({"role": "user", "content": SUMMARY + summary})

    def _add_message(self, item: MessageItem) -> None:
        said = {"role": item.role, "content": self._content_of(item)}
        if item.role == "assistant":
            self._go_on(said, fresh=("content", "tool_calls"))
        else:
            self.messages.append(said)

    def _content_of(self, item: MessageItem) -> str | list[Json]:
        """Return a message's text, or a list of parts if the model reads a picture or sound in it."""
        if isinstance(item.content, str):
            return item.content
        senses = TEXT_ONLY if item.role == "assistant" else self._senses
        if not any(senses.reads(part.type) for part in item.content):
            return "\n".join(map(_text_of_part, item.content))
        return [sensed(part) if senses.reads(part.type) else _said(part) for part in item.content]

    def _returned(self, output: Any) -> str | list[Json]:
        """Return a tool's result as text, or as parts if the model reads a picture or sound in it."""
        parts = cast(list[Any], output) if isinstance(output, list) else []
        if not any(self._senses.reads(type_of(part)) for part in parts):
            return _returned_text(output)
        return [
            sensed(part)
            if self._senses.reads(type_of(part))
            else {"type": "text", "text": _returned_text(part)}
            for part in parts
        ]

    def _add_thoughts(self, item: ReasoningItem) -> None:
        shown = "".join(part.text for part in item.content or item.summary)
        if thoughts := shown or decode_thoughts(item.encrypted_content or ""):
            self._go_on({"reasoning_content": thoughts}, fresh=("reasoning_content", "content", "tool_calls"))

    def _add_call(self, id: str, name: str, arguments: str) -> None:
        self._go_on({"tool_calls": [ToolCall(id, name, arguments).as_json]})

    def _add_result(self, id: str, content: str | list[Json]) -> None:
        self.messages.append({"role": "tool", "tool_call_id": id, "content": content})

    def _show_tools(self, item: FoundToolsItem, shown: str) -> None:
        """Add `shown`, the text about an item's tools, as a message.

        It is a tool's result if the tools were found by a search, else a developer message.
        """
        if item.type == "tool_search_output":
            self._add_result(item.call_id or "", shown)
        else:
            self.messages.append({"role": "developer", "content": f"More tools:\n{shown}"})

    def _add_other(self, item: OtherItem, place: str) -> None:
        """Add an item without a class of its own, such as a call of one of OpenAI's tools, or its result.

        An item of an unknown type is left out, with a note in left_out of the tools.

        Args:
            item: The item.
            place: Name of its field in the request.

        Raises:
            FieldError: The item asks for a compaction.
        """
        fields, id = item.fields, str(item.fields.get("call_id") or item.fields.get("id") or "")
        result = next((fields[name] for name in _RESULTS if fields.get(name) is not None), None)
        if item.type in _CALLS:
            name, member = _CALLS[item.type]
            if not name:
                name = flat_name(str(fields.get("server_label") or ""), str(fields.get("name") or ""))
            self._add_call(id, name, _arguments_text(member, fields.get(member)))
            if result is not None:
                self._add_result(id, _returned_text(result))
        elif item.type.endswith("_output") and result is not None:
            self._add_result(id, _returned_text(result))
        elif item.type == "agent_message":  # from another agent to this one
            self.messages.append({"role": "user", "content": _returned_text(fields.get("content"))})
        elif item.type == "compaction_trigger":
            raise FieldError(f"{place}.type", "compaction_trigger: ask /v1/responses/compact instead")
        elif item.type not in _SILENT:
            self._tools.left_out.append(f"{place}: items of the type {item.type} are left out")

    def _go_on(self, said: Json, fresh: Sequence[str] = ()) -> None:
        """Add the fields `said` to the last message, or to a new message of the assistant.

        A new message begins if the last one is not the assistant's, or has one of the fields in `fresh`.
        """
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or any(name in last for name in fresh):
            self.messages.append({"role": "assistant", **said})
            return
        calls = [*last.get("tool_calls", ()), *said.get("tool_calls", ())]
        self.messages[-1] = {**last, **said, **({"tool_calls": calls} if calls else {})}


def _refuse_unread(items: Sequence[Item], senses: Senses) -> None:
    """Raise FieldError if one of the last messages has a file, or another part that the model cannot read.

    The last messages are those that no reply or other item follows. If a tool's result precedes them,
    everything is allowed, since pictures may belong to it. Another model may have read earlier pictures.
    """
    n_before = len(items)
    while (
        n_before
        and isinstance(items[n_before - 1], MessageItem)
        and _role_of(items[n_before - 1]) != "assistant"
    ):
        n_before -= 1
    if n_before and isinstance(items[n_before - 1], CallOutputItem):
        return
    for i, item in enumerate(items[n_before:], n_before):
        parts = item.content if isinstance(item, MessageItem) and not isinstance(item.content, str) else ()
        for j, part in enumerate(parts):
            if isinstance(part, UnseenPart) and not senses.reads(part.type):
                raise FieldError(
                    f"input.{i}.content.{j}.type",
                    f"{part.type}: this model reads {senses.words} only, send input_text",
                )


def _role_of(item: Item) -> str:
    return item.role if isinstance(item, MessageItem) else ""


def _said(part: Part | RefusalPart | UnseenPart) -> Json:
    return {"type": "text", "text": _text_of_part(part)}


def _text_of_part(part: Part | RefusalPart | UnseenPart) -> str:
    return stand_in(part.type) if isinstance(part, UnseenPart) else part.text


def _arguments_text(member: str, value: Any) -> str:
    """Return the JSON text of an object with the arguments.

    `value` is the object or its JSON text. Any other value except None becomes the object's field `member`.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError):
            value = json.loads(value)
    given = cast(Json, value) if isinstance(value, dict) else {} if value is None else {member: value}
    return json.dumps(given, ensure_ascii=False)


def _returned_text(value: Any) -> str:
    """Return a tool's result as text; pictures are replaced by texts."""
    if isinstance(value, list):
        return "\n".join(map(_returned_text, cast(list[Any], value)))
    if not isinstance(value, dict):
        return value if isinstance(value, str) else json.dumps(value)
    given = cast(Json, value)
    if "stdout" in given:  # output of a shell
        told = [given["stdout"], given.get("stderr"), given.get("outcome")]
        return "\n".join(one if isinstance(one, str) else json.dumps(one) for one in told if one)
    if isinstance(given.get("type"), str) and given["type"] not in ("logs",):
        return text_of(given)
    return json.dumps(given, ensure_ascii=False)
