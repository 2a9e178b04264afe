"""The tools of a request to the Messages API."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Discriminator, Field, Tag

from server.api.body import Body, EchoedSchema, type_of
from server.api.left_out import is_for_code, left_out_for_code, left_out_tool
from server.api.tools import NAME

Json: TypeAlias = dict[str, Any]


class ClientTool(Body):
    """A tool that the client describes and carries out."""

    type: Literal["custom"] = "custom"
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    input_schema: EchoedSchema
    """Nested at most 120 levels deep."""
    strict: bool | None = None
    allowed_callers: Annotated[list[str], Field(fail_fast=True)] | None = None
    """Who may call the tool. Without `direct`, only code on Anthropic's servers may, so it is left out."""
    defer_loading: bool = False
    """true: the tool is left out until a tool_reference names it, and is shown there. Has no effect if the
    request leaves the search to Anthropic's servers, since this server does not search."""


class AnthropicTool(Body):
    """A tool that Anthropic defines; either the client or Anthropic's servers carry it out."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    name: str = ""


def _tag_of(tool: Any) -> str:
    return "a client's tool" if type_of(tool) in (None, "custom") else "Anthropic's tool"


AnyTool: TypeAlias = Annotated[
    Annotated[ClientTool, Tag("a client's tool")] | Annotated[AnthropicTool, Tag("Anthropic's tool")],
    Discriminator(_tag_of),
]


def _object_schema(required: Sequence[str], **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT: Json = {"type": "string"}
_LINE: Json = {"type": "integer"}
_RANGE: Json = {"type": "array", "items": _LINE, "minItems": 2, "maxItems": 2}
_EDITING = {
    "path": _TEXT,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _LINE,
    "insert_text": _TEXT,
    "view_range": _RANGE,
}
_DESCRIBED: Mapping[str, tuple[str, Json]] = {
    "bash_": (
        "Runs a command in a shell that stays open; restart opens a new one.",
        _object_schema((), command=_TEXT, restart={"type": "boolean"}),
    ),
    "text_editor_": (
        "Views, creates and edits files.",
        _object_schema(
            ("command", "path"),
            command={"enum": ["view", "create", "str_replace", "insert", "undo_edit"]},
            **_EDITING,
        ),
    ),
    "memory_": (
        "Keeps notes in files below /memories.",
        _object_schema(
            ("command",),
            command={"enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
            **_EDITING,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
}
"""Description and input schema of each Anthropic tool that clients carry out, by prefix of its type."""


@dataclass(slots=True)
class OfferedTools:
    """The tools that the model may call."""

    chat: list[Json] = field(default_factory=list[Json])
    """Tools of the chat completion."""
    places: list[str] = field(default_factory=list[str])
    """For each tool in `chat`, the name of its field in the request."""
    deferred: dict[str, tuple[Json, str]] = field(default_factory=dict[str, tuple[Json, str]])
    """Tools that no message has shown yet, by name, each with its field in the request."""
    left_out: list[str] = field(default_factory=list[str])
    """Sentences about parts of the request that are not served."""

    def shown(self, name: str) -> str:
        """Make a deferred tool callable, and return the text of the message that shows it to the model.

        For a tool that the chat template shows, and for an unknown tool, the text is only its name.
        """
        found = self.deferred.pop(name, None)
        if found is not None:
            tool, place = found
            self.chat.append({**tool, "in_message": True})
            self.places.append(place)
        later = next((one for one in self.chat if one["function"]["name"] == name), None)
        if later is None or not later.get("in_message"):
            return name
        function = {key: value for key, value in later["function"].items() if key != "strict"}
        return json.dumps({"type": "function", "function": function}, ensure_ascii=False)

    def choose(self, name: str) -> None:
        """Make a tool callable if it is deferred. Use it if the request demands a call of the tool."""
        if (found := self.deferred.pop(name, None)) is not None:
            self.chat.append(found[0])
            self.places.append(found[1])

    def place_of(self, param: str) -> str:
        """Convert a field name of the chat completion, such as tools.0.function.name, to this request's."""

        def place(found: re.Match[str]) -> str:
            inner = found[2].replace(".function", "", 1).replace(".parameters", ".input_schema", 1)
            return self.places[int(found[1])] + inner

        return re.sub(r"^tools\.(\d+)(.*)$", place, param)


def offered_tools(tools: Sequence[AnyTool]) -> OfferedTools:
    """Return the tools that this server can offer to its model.

    No tool is deferred if Anthropic's servers are to search for tools, because this server cannot search.
    """
    searched = any(tool.type.startswith("tool_search_tool_") for tool in tools)
    offered = OfferedTools()
    for i, tool in enumerate(tools):
        place = f"tools.{i}"
        if (chat := _as_chat(tool)) is None:
            offered.left_out.append(left_out_tool(tool.type, place))
        elif isinstance(tool, ClientTool) and is_for_code(tool.allowed_callers):
            offered.left_out.append(left_out_for_code(tool.name, place))
        elif isinstance(tool, ClientTool) and tool.defer_loading and not searched:
            offered.deferred[tool.name] = chat, place
        else:
            offered.chat.append(chat)
            offered.places.append(place)
    return offered


def _as_chat(tool: AnyTool) -> Json | None:
    """Return the tool in chat completion format, None if Anthropic's servers carry it out."""
    if isinstance(tool, ClientTool):
        told = {"name": tool.name, "description": tool.description, "strict": tool.strict}
        return {"type": "function", "function": {**told, "parameters": tool.input_schema}}
    for begins, (description, parameters) in _DESCRIBED.items():
        if tool.type.startswith(begins):
            described = {"name": tool.name, "description": description, "parameters": parameters}
            return {"type": "function", "function": described}
    return None
