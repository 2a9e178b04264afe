"""Tools of a request, and which of them may or must be called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from server.api.body import Body, EchoedSchema

MAX_TOOLS = 128
"""As OpenAI."""
NAME = r"^[a-zA-Z0-9_.:/-]{1,128}$"
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


class FunctionDefinition(Body):
    """strict: refuse a schema that cannot be compiled. Calls fit their schemas in any case."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: EchoedSchema | None = None
    strict: bool | None = None

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        return self.parameters or _NOTHING


class Tool(Body):
    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            shown["description"] = self.function.description
        return {"type": "function", "function": {**shown, "parameters": self.function.schema_of_arguments}}


class FunctionName(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedTool | AllowedChoice


class ToolFields(Body):
    """OpenAI's."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True, slots=True)
class Calling:
    """tools: those of the request; callable: indices of those that may be called; required: one must be;
    most: calls at most, None for any number."""

    tools: Sequence[Tool]
    callable: Sequence[int]
    required: bool = False
    most: int | None = None

    @property
    def functions(self) -> list[tuple[int, FunctionDefinition]]:
        """Callable functions with their indices."""
        return [(i, self.tools[i].function) for i in self.callable]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tools[i].function.name for i in self.callable)


def calling(body: ToolFields) -> Calling | None:
    """None without tools."""
    tools, choice = body.tools or [], body.tool_choice
    if not tools:
        return None
    if choice == "none":
        return Calling(tools, ())
    names, required = _chosen(choice)
    callable = [i for i, tool in enumerate(tools) if names is None or tool.function.name in names]
    named = isinstance(choice, NamedTool)
    return Calling(tools, callable, required, 1 if named or body.parallel_tool_calls is False else None)


def _chosen(choice: ToolChoice | None) -> tuple[frozenset[str] | None, bool]:
    """Names of callable functions (None: all), and whether one must be called."""
    match choice:
        case NamedTool(function=function):
            return frozenset({function.name}), True
        case AllowedChoice(allowed_tools=allowed):
            return frozenset(one.function.name for one in allowed.tools), allowed.mode == "required"
        case _:
            return None, choice == "required"


def incoherent(body: ToolFields) -> tuple[str, str] | None:
    """The first of these fields that contradicts another, and why."""
    names = [tool.function.name for tool in body.tools or ()]
    for i, name in enumerate(names):
        if name in names[:i]:
            return f"tools.{i}.function.name", f"{name} is the name of another tool already"
    wanted, required = _chosen(body.tool_choice)
    for i, tool in enumerate(body.tools or ()):
        if tool.function.schema_of_arguments.get("type", "object") != "object":
            return f"tools.{i}.function.parameters.type", "arguments are an object"
    unknown = sorted((wanted or frozenset()).difference(names))
    if unknown:
        return "tool_choice", f"there is no tool with the name {unknown[0]}"
    if required and not names:
        return "tool_choice", "there are no tools to call"
    return None
