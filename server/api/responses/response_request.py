"""The body of a request to OpenAI's Responses API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from pydantic import Discriminator, Field, Tag

from server.api.body import Body, EchoedSchema, Neutral, RefusalPart, at_most, said_or_refused
from server.api.generation_fields import UNSUPPORTED, SharedFields, TopLogprobs
from server.api.tools import MAX_TOOLS

MAX_METADATA = 16

Included: TypeAlias = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
"""The latter changes nothing: thoughts are told, and taken back, as they are."""


class Part(Body):
    """Of a message, or of a tool's result."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class ThoughtPart(Body):
    type: Literal["reasoning_text", "summary_text"]
    text: str


ThoughtParts: TypeAlias = Annotated[list[ThoughtPart], Field(fail_fast=True)]
Texts: TypeAlias = str | Annotated[list[Part], Field(fail_fast=True)]


PartInMessage: TypeAlias = Annotated[
    Annotated[Part, Tag("said")] | Annotated[RefusalPart, Tag("refused")], Discriminator(said_or_refused)
]


class MessageItem(Body):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[PartInMessage], Field(fail_fast=True)]


class CallItem(Body):
    """A call by the model."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(Body):
    type: Literal["function_call_output"]
    call_id: str
    output: Texts


class ReasoningItem(Body):
    type: Literal["reasoning"]
    content: ThoughtParts = Field(default_factory=list[ThoughtPart])
    summary: ThoughtParts = Field(default_factory=list[ThoughtPart])


def _type_of(item: Any) -> str:
    """The type may be missing in messages."""
    given = cast(dict[str, Any], item).get("type") if isinstance(item, dict) else None
    return given if isinstance(given, str) else "message"


Item: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _type_of,
        custom_error_type="item_type",
        custom_error_message="must be a message, function_call, function_call_output or reasoning",
    ),
]


class FunctionTool(Body):
    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: EchoedSchema | None = None
    strict: bool | None = None


class NamedFunction(Body):
    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]


class AllowedFunctions(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    definition: EchoedSchema | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    format: TextFormat = Field(default_factory=lambda: TextFormat.model_validate({}))


class ReasoningOptions(Body):
    effort: str | None = None


class ResponseRequest(SharedFields):
    """POST /v1/responses."""

    input: str | Annotated[list[Item], Field(min_length=1, fail_fast=True)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(
        default_factory=list[FunctionTool]
    )
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | AllowedFunctions = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[Included], Field(fail_fast=True)] = Field(default_factory=list[Included])
    top_logprobs: TopLogprobs | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA), at_most(MAX_METADATA)] = Field(
        default_factory=dict[str, str]
    )

    unsupported: ClassVar[Neutral] = {
        **UNSUPPORTED,
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "moderation": (),
        "prompt": (),
    }

    @property
    def with_logprobs(self) -> bool:
        return "message.output_text.logprobs" in self.include or bool(self.top_logprobs)
