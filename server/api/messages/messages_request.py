"""The body of a request to Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field

from server.api.body import Body, EchoedSchema, Neutral, TextPart
from server.api.generation_fields import MAX_STOPS, UNSUPPORTED, SharedFields
from server.api.tools import MAX_TOOLS, NAME


def _only(*known: str) -> BeforeValidator:
    """A validator of objects that refuses every other type by its name."""

    def check(given: object) -> object:
        kind = cast(dict[str, Any], given).get("type") if isinstance(given, dict) else None
        if isinstance(kind, str) and kind not in known:
            raise ValueError(f"`{kind}` is not supported by this server: only {', '.join(known)}")
        return cast(object, given)

    return BeforeValidator(check)


class ThinkingBlock(Body):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedBlock(Body):
    """Thoughts that nobody here can read."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(Body):
    """A call by the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolReference(Body):
    """What a search for tools has found: one of the request's, all of which the model is shown anyway."""

    type: Literal["tool_reference"]
    tool_name: str

    def as_text(self) -> TextPart:
        return TextPart(type="text", text=self.tool_name)


Returned: TypeAlias = Annotated[
    Annotated[TextPart | ToolReference, Field(discriminator="type")], _only("text", "tool_reference")
]


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[Returned], Field(fail_fast=True)] = ""
    is_error: bool = False


Block: TypeAlias = Annotated[
    Annotated[
        TextPart | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock,
        Field(discriminator="type"),
    ],
    _only("text", "thinking", "redacted_thinking", "tool_use", "tool_result"),
]


class Turn(Body):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(fail_fast=True)]


class ClientTool(Body):
    """One that the client carries out; Anthropic carries out those of other types."""

    type: Literal["custom"] = "custom"
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    input_schema: EchoedSchema
    strict: bool | None = None


class ChoiceOfTool(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Body):
    """budget_tokens: of enabled; absent, the server's --reasoning-budget holds. display: omitted thoughts are
    generated, but told in their signature only."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    definition: EchoedSchema = Field(alias="schema")


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessagesRequest(SharedFields):
    """POST /v1/messages. model: any name, since Anthropic's clients know Anthropic's only. output_format is
    the name that output_config.format had at first."""

    messages: Annotated[list[Turn], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[Annotated[TextPart, _only("text")]], Field(fail_fast=True)] = ""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)] = Field(
        default_factory=list[str]
    )
    tools: Annotated[
        list[Annotated[ClientTool, _only("custom")]], Field(max_length=MAX_TOOLS, fail_fast=True)
    ] = Field(default_factory=list[ClientTool])
    tool_choice: ChoiceOfTool | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None

    unsupported: ClassVar[Neutral] = {
        **UNSUPPORTED,
        "return_progress": (False,),
        "container": (),
        "mcp_servers": ([],),
    }

    def contradiction(self) -> tuple[str, str] | None:
        if (choice := self.tool_choice) and choice.type == "tool" and choice.name is None:
            return "tool_choice.name", "required"
        return super().contradiction()
