"""Tools of a request, and the rules for calling them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from server.api.body import Body, EchoedSchema, type_of

MAX_TOOLS = 1 << 14
"""Maximum tools of a request: each takes up to 0.1 ms of a core to read and render."""
NAME = r"^[a-zA-Z0-9_.:/-]{1,128}$"
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
CUSTOM_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Schema of the arguments of a function that represents a custom tool."""


def _no_list(parameters: Any) -> Any:
    """Return None for an empty list, which PHP writes for an empty object."""
    return None if parameters == [] else parameters


class FunctionDefinition(Body):
    """A function. Parts of its schema that no grammar can enforce are dropped, or refused if `strict`."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: Annotated[EchoedSchema | None, BeforeValidator(_no_list)] = None
    """JSON schema of an object, nested at most 120 levels deep.

    Without it, the function takes no arguments. The same holds if it has no properties, and no keyword that
    allows members.
    """
    strict: bool | None = None
    """true: refuse a schema with parts that no grammar can enforce, even with tool_choice auto."""

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        return self.parameters or _NOTHING

    @property
    def as_json(self) -> list[Any]:
        """Return everything that determines the grammar of this function's calls."""
        return [self.name, self.strict, self.schema_of_arguments]


class InputFormat(Body):
    """The grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomFormat(Body):
    """The form of a custom tool's input: any text, or text that fits a grammar."""

    type: Literal["text", "grammar"] = "text"
    grammar: InputFormat | None = None
    """Required if the type is grammar."""

    @model_validator(mode="after")
    def _has_its_grammar(self) -> Self:
        if self.type == "grammar" and self.grammar is None:
            raise ValueError("a format of the type grammar needs the field grammar")
        return self


class CustomFunction(FunctionDefinition):
    """A custom tool represented to the model by a function with one argument, the text `input`."""

    input_format: InputFormat | None = None

    @property
    def as_json(self) -> list[Any]:
        return [*super().as_json, self.input_format and self.input_format.model_dump()]


class CustomDefinition(Body):
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    format: CustomFormat = Field(default_factory=CustomFormat)

    @property
    def as_function(self) -> CustomFunction:
        """Return the function that represents this tool."""
        grammar, said = self.format.grammar, self.description or ""
        if grammar is not None:
            said += f"\n\nThe input matches this {grammar.syntax} grammar:\n{grammar.definition}"
        return CustomFunction(
            name=self.name,
            description=said.strip() or None,
            parameters=CUSTOM_INPUT,
            strict=grammar is not None,
            input_format=grammar,
        )


class ShownTool(Body):
    """Base of functions and custom tools."""

    in_message: bool = False
    """True if a message shows the tool, so the chat template must not."""

    def shown_as(self, function: FunctionDefinition) -> dict[str, Any]:
        """Return the tool in the format of chat templates."""
        shown: dict[str, Any] = {"name": function.name}
        if function.description is not None:
            shown["description"] = function.description
        return {"type": "function", "function": {**shown, "parameters": function.schema_of_arguments}}


class FunctionTool(ShownTool):
    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        return self.shown_as(self.function)


class CustomTool(ShownTool):
    """OpenAI's tool whose input is a text instead of JSON."""

    type: Literal["custom"]
    custom: CustomDefinition

    @cached_property
    def function(self) -> CustomFunction:
        return self.custom.as_function

    def for_template(self) -> dict[str, Any]:
        return self.shown_as(self.function)


def kind_of_tool(given: Any) -> str:
    """Return the tag by which pydantic chooses a tool's class, so that errors only concern this class."""
    return "a custom tool" if type_of(given) == "custom" else "a function"


Tool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("a function")] | Annotated[CustomTool, Tag("a custom tool")],
    Discriminator(kind_of_tool),
]


class FunctionName(Body):
    name: str


class NamedFunctionTool(Body):
    type: Literal["function"]
    function: FunctionName


class NamedCustomTool(Body):
    type: Literal["custom"]
    custom: FunctionName

    @property
    def function(self) -> FunctionName:
        return self.custom


NamedTool: TypeAlias = NamedFunctionTool | NamedCustomTool
TaggedName: TypeAlias = Annotated[
    Annotated[NamedFunctionTool, Tag("a function")] | Annotated[NamedCustomTool, Tag("a custom tool")],
    Discriminator(kind_of_tool),
]


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[TaggedName], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedTool | AllowedChoice


class ToolFields(Body):
    """OpenAI's fields about tools."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """Functions that may be called. If the chat template knows no tools, the prompt describes them."""
    tool_choice: ToolChoice | None = None
    """none: no calls. The tools are then not shown to models whose calls have no marker.

    auto (the default): from its marker on, a call must fit its function, if the model's family has markers.
    Keywords of a schema that no grammar can enforce are left out; in a strict schema such a keyword is
    refused with a 400 that names its field. required, a function, or allowed tools of mode required: the
    reply consists of calls, except for thoughts.
    """
    parallel_tool_calls: bool | None = None
    """false: at most one call.

    If a call is required and the chat template knows no tools, the default is false.
    """

    @model_validator(mode="before")
    @classmethod
    def _parameters_of_uncalled_tools_may_be_wrong(cls, data: Any) -> Any:
        """Drop invalid parameters if tool_choice is none, since then they have no effect."""
        if not isinstance(data, dict):
            return data
        given = cast(dict[str, Any], data)
        if given.get("tool_choice") != "none" or not isinstance(given.get("tools"), list):
            return given
        return {**given, "tools": [_without_wrong_parameters(tool) for tool in given["tools"]]}


def _without_wrong_parameters(tool: Any) -> Any:
    fields = cast(dict[str, Any], tool) if isinstance(tool, dict) else {}
    function = fields.get("function")
    if not isinstance(function, dict) or isinstance(cast(dict[str, Any], function).get("parameters"), dict):
        return cast(Any, tool)
    return {**fields, "function": {**cast(dict[str, Any], function), "parameters": None}}


@dataclass(frozen=True, slots=True)
class Calling:
    """The tools of a request, and which of them may be called."""

    tools: Sequence[Tool]  # all tools of the request
    callable: Sequence[int]  # indices of the tools that may be called
    required: bool = False  # at least one call must be made
    most: int | None = None  # maximum calls; None: any number

    @property
    def functions(self) -> list[tuple[int, FunctionDefinition]]:
        """Return the functions that may be called, with their tools' indices in the request."""
        return [(i, self.tools[i].function) for i in self.callable]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tools[i].function.name for i in self.callable)


def calling(body: ToolFields) -> Calling | None:
    """Return the tools and which of them may be called; None if the request has no tools."""
    tools, choice = body.tools or [], body.tool_choice
    if not tools:
        return None
    if choice == "none":
        return Calling(tools, ())
    names, required = _chosen_tools(choice)
    callable = [i for i, tool in enumerate(tools) if names is None or tool.function.name in names]
    named = isinstance(choice, NamedFunctionTool | NamedCustomTool)
    return Calling(tools, callable, required, 1 if named or body.parallel_tool_calls is False else None)


def _chosen_tools(choice: ToolChoice | None) -> tuple[frozenset[str] | None, bool]:
    """Return the names of callable functions (None: all), and True if one must be called."""
    match choice:
        case NamedFunctionTool() | NamedCustomTool():
            return frozenset({choice.function.name}), True
        case AllowedChoice(allowed_tools=allowed):
            return frozenset(one.function.name for one in allowed.tools), allowed.mode == "required"
        case _:
            return None, choice == "required"


def _is_of_objects(schema: dict[str, Any]) -> bool:
    kinds = schema.get("type", "object")
    return kinds == "object" or (isinstance(kinds, list) and "object" in kinds)


def incoherent(body: ToolFields) -> tuple[str, str] | None:
    """Return the first of these fields that contradicts another, and why; None if there is none."""
    names = dict[str, int]()
    wanted, required = _chosen_tools(body.tool_choice)
    for i, tool in enumerate(body.tools or ()):
        if names.setdefault(tool.function.name, i) != i:
            return f"tools.{i}.function.name", f"{tool.function.name} is the name of another tool already"
        if body.tool_choice != "none" and not _is_of_objects(tool.function.schema_of_arguments):
            return f"tools.{i}.function.parameters.type", "arguments are an object"
    unknown = sorted((wanted or frozenset()).difference(names))
    if unknown:
        return "tool_choice", f"there is no tool with the name {unknown[0]}"
    if required and not names:
        return "tool_choice", "there are no tools to call"
    return None
