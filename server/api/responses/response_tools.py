"""Tools of a request to the Responses API, and their conversion to tools of a chat completion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Discriminator, Field, Tag

from server.api.body import Body, EchoedSchema, type_of
from server.api.left_out import is_for_code, left_out_for_code, left_out_tool
from server.api.tools import CUSTOM_INPUT, InputFormat
from server.errors import FieldError

Json: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["function", "custom", "tool_search"]

SEARCH = "tool_search"
"""Name of the function by which the model asks the client to search for tools."""
_SEARCH_ARGUMENTS: Json = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "what the tool should do"}},
    "required": ["query"],
}

_IN_TOOL = re.compile(r"^tools\.(\d+)\.(function|custom)(\.format\.grammar\.definition)?\.?(.*)$")
"""Matches the name of a field in a chat completion's tool."""


class OwnFunction(Body):
    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: EchoedSchema | None = None
    """Nested at most 120 levels deep."""
    strict: bool | None = None
    allowed_callers: Annotated[list[str], Field(fail_fast=True)] | None = None
    """Without `direct`, only code on OpenAI's servers may call the tool, so it is left out."""
    defer_loading: bool = False
    """true: if the client searches for tools, the tool is left out until a tool_search_output shows it."""


class AnyTextFormat(Body):
    type: Literal["text"]


class GrammarFormat(InputFormat):
    type: Literal["grammar"]


class OwnCustom(Body):
    """A tool whose input is a text, which may have a grammar."""

    type: Literal["custom"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    format: Annotated[AnyTextFormat | GrammarFormat, Field(discriminator="type")] | None = None
    allowed_callers: Annotated[list[str], Field(fail_fast=True)] | None = None
    """Without `direct`, only code on OpenAI's servers may call the tool, so it is left out."""
    defer_loading: bool = False
    """true: if the client searches for tools, the tool is left out until a tool_search_output shows it."""


class SearchTool(Body):
    """A search for tools; the client carries it out if `execution` is client."""

    type: Literal["tool_search"]
    execution: Literal["server", "client"] = "server"
    description: str | None = None
    parameters: EchoedSchema | None = None
    """Nested at most 120 levels deep."""


class HostedTool(Body):
    """A tool of any other type, such as web search, which OpenAI's servers would carry out."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str


InNamespace: TypeAlias = Annotated[OwnFunction | OwnCustom, Field(discriminator="type")]


class NamespaceTool(Body):
    """Functions and custom tools of one namespace."""

    type: Literal["namespace"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    tools: Annotated[list[InNamespace], Field(fail_fast=True)]
    defer_loading: bool = False
    """true: if the client searches for tools, the tool is left out until a tool_search_output shows it."""


def _tag_of(tool: Any) -> str:
    kind = type_of(tool)
    if kind is None:
        return "function"  # whose type is required
    return kind if kind in ("function", "custom", "namespace", "tool_search") else "hosted"


AnyTool: TypeAlias = Annotated[
    Annotated[OwnFunction, Tag("function")]
    | Annotated[OwnCustom, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[SearchTool, Tag("tool_search")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_tag_of),
]
OwnTool: TypeAlias = OwnFunction | OwnCustom | SearchTool
"""A tool that the client carries out."""


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool that the client carries out, with the client's and the model's name for it."""

    tool: OwnTool
    place: str  # name of the request's field with the tool, such as tools.3.tools.0
    namespace: str | None = None
    in_message: bool = False  # a message shows the tool, so the chat template must not

    @property
    def kind(self) -> Kind:
        return self.tool.type

    @property
    def name(self) -> str:
        """Return the client's name for the tool."""
        return SEARCH if isinstance(self.tool, SearchTool) else self.tool.name

    @property
    def flat_name(self) -> str:
        """Return the model's name for the tool, which includes its namespace."""
        return flat_name(self.namespace, self.name)

    @property
    def as_chat(self) -> Json:
        """Return the tool in chat completion format."""
        tool, beside = self.tool, {"in_message": True} if self.in_message else {}
        if isinstance(tool, OwnCustom):
            grammar = tool.format if isinstance(tool.format, GrammarFormat) else None
            given = grammar and {"type": "grammar", "grammar": grammar.model_dump(exclude={"type"})}
            custom = _given_fields(name=self.flat_name, description=tool.description, format=given)
            return {"type": "custom", "custom": custom, **beside}
        search = isinstance(tool, SearchTool)
        parameters = tool.parameters or (_SEARCH_ARGUMENTS if search else None)
        strict = None if isinstance(tool, SearchTool) else tool.strict
        described = _given_fields(
            name=self.flat_name, description=tool.description, parameters=parameters, strict=strict
        )
        return {"type": "function", "function": described, **beside}

    @property
    def as_shown(self) -> Json:
        """Return the tool in the format of chat templates: as a function, without `strict`."""
        chat = self.as_chat
        function = chat.get("function") or {
            "name": self.flat_name,
            "description": self.tool.description or "",
            "parameters": CUSTOM_INPUT,
        }
        return {"type": "function", "function": {k: v for k, v in function.items() if k != "strict"}}


@dataclass(slots=True)
class ServedTools:
    """The tools that the model may call, by the model's names for them."""

    by_name: dict[str, ServedTool] = field(default_factory=dict[str, ServedTool])
    deferred: dict[str, ServedTool] = field(default_factory=dict[str, ServedTool])
    """Tools that no message has shown yet."""
    left_out: list[str] = field(default_factory=list[str])
    """Sentences about parts of the request that are not served."""

    @property
    def as_chat(self) -> list[Json]:
        return [tool.as_chat for tool in self.by_name.values()]

    def place_of(self, param: str) -> str:
        """Convert a field name of the chat completion, such as tools.0.function.name, to this request's."""

        def place(found: re.Match[str]) -> str:
            served = list(self.by_name.values())[int(found[1])]
            inner = "format.definition" if found[3] else found[4] or ""
            return served.place + (f".{inner}" if inner else "")

        return _IN_TOOL.sub(place, param)

    def load(self, tools: Sequence[AnyTool], place: str) -> str:
        """Make these tools callable, and return the text of the message that shows them to the model.

        Args:
            tools: The tools.
            place: Name of the list in the request.
        """
        found = ServedTools()
        found.add(tools, place, deferring=False, repeated=True)
        for name, tool in found.by_name.items():
            self.deferred.pop(name, None)
            known = self.by_name.get(name)
            if known is None or known.in_message:
                self.by_name[name] = replace(tool, in_message=True)
        self.left_out += found.left_out
        return "\n".join(json.dumps(tool.as_shown, ensure_ascii=False) for tool in found.by_name.values())

    def add(self, tools: Sequence[AnyTool], place: str, *, deferring: bool, repeated: bool = False) -> None:
        """Add tools to those that the model may call.

        Args:
            tools: The tools.
            place: Name of the list in the request.
            deferring: True: leave out tools with defer_loading until load() shows them.
            repeated: True: use the last of several tools with equal names, instead of raising.

        Raises:
            FieldError: Two tools have equal names.
        """
        for i, tool in enumerate(tools):
            if isinstance(tool, HostedTool) or not is_served(tool):
                self.left_out.append(left_out_tool(tool.type, f"{place}.{i}"))
                continue
            for served, deferred in _flattened_tools(tool, f"{place}.{i}"):
                name, one = served.flat_name, served.tool
                if not isinstance(one, SearchTool) and is_for_code(one.allowed_callers):
                    self.left_out.append(left_out_for_code(one.name, served.place))
                    continue
                if not repeated and (name in self.by_name or name in self.deferred):
                    raise FieldError(f"{served.place}.name", f"{name} is the name of another tool already")
                (self.deferred if deferring and deferred else self.by_name)[name] = served

    def called(self, name: str, kinds: Sequence[str]) -> ServedTool | None:
        """Return the callable tool of one of these kinds that has this name for the model.

        If there is none, return the one tool that has this name for the client. If several have it, return
        None.
        """
        if (exact := self.by_name.get(name)) is not None and exact.kind in kinds:
            return exact
        same = [one for one in self.by_name.values() if one.name == name and one.kind in kinds]
        return same[0] if len(same) == 1 else None


def served_tools(tools: Sequence[AnyTool]) -> ServedTools:
    """Return the tools of a request that can be served.

    Tools are deferred only if the client searches for tools, because this server does not search.

    Raises:
        FieldError: Two tools have the same name.
    """
    searched = any(isinstance(tool, SearchTool) and tool.execution == "client" for tool in tools)
    served = ServedTools()
    served.add(tools, "tools", deferring=searched)
    return served


def is_served(tool: AnyTool) -> bool:
    """Return True if the client carries out this tool, so that the model may call it."""
    if isinstance(tool, SearchTool):
        return tool.execution == "client"
    return not isinstance(tool, HostedTool)


def flat_name(namespace: str | None, name: str) -> str:
    """Return the model's name for a tool: <namespace>__<name>, or `name` if it has that prefix already."""
    if not namespace or name.startswith(namespace):
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def _flattened_tools(tool: OwnTool | NamespaceTool, place: str) -> Iterator[tuple[ServedTool, bool]]:
    """Yield each tool of a namespace, or the single tool, with True if the client defers it.

    place: Name of the field with `tool` in the request.
    """
    if isinstance(tool, NamespaceTool):
        for i, inner in enumerate(tool.tools):
            deferred = tool.defer_loading or inner.defer_loading
            yield ServedTool(inner, f"{place}.tools.{i}", tool.name), deferred
    else:
        yield ServedTool(tool, place), not isinstance(tool, SearchTool) and tool.defer_loading


def _given_fields(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}
