"""The body of a request to OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from server.api.body import Body, EchoedSchema, Neutral, at_most, type_of
from server.api.generation_fields import UNSUPPORTED, SharedFields, TopLogprobs
from server.api.responses.response_items import Item, MessageItem
from server.api.responses.response_tools import AnyTool, flat_name

MAX_METADATA = 16


class NamedTool(Body):
    """The choice of one tool that the client carries out."""

    type: Literal["function", "custom"]
    name: Annotated[str, Field(min_length=1)]
    namespace: str | None = None

    @property
    def flat_name(self) -> str:
        """Return the model's name for the tool, which includes its namespace."""
        return flat_name(self.namespace, self.name)


class HostedChoice(Body):
    """The choice of a tool that OpenAI's servers carry out."""

    type: str


def _tag_of(choice: Any) -> str:
    kind = type_of(choice)
    if not isinstance(choice, dict | Body):
        return "mode"
    if kind == "allowed_tools":
        return "allowed"
    return "named" if kind in (None, "function", "custom") else "hosted"


OneTool: TypeAlias = Annotated[
    Annotated[NamedTool, Tag("named")] | Annotated[HostedChoice, Tag("hosted")], Discriminator(_tag_of)
]


class AllowedOwnTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[OneTool], Field(min_length=1, fail_fast=True)]


ToolChoice: TypeAlias = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedTool, Tag("named")]
    | Annotated[AllowedOwnTools, Tag("allowed")]
    | Annotated[HostedChoice, Tag("hosted")],
    Discriminator(_tag_of),
]


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    definition: EchoedSchema | None = Field(None, alias="schema")
    """Required for the type json_schema. Nested at most 120 levels deep."""
    strict: bool | None = None


class TextOptions(Body):
    verbosity: str | None = None
    """Passed to the chat template, which may ignore it."""
    format: TextFormat = Field(default_factory=lambda: TextFormat.model_validate({}))


class ReasoningOptions(Body):
    effort: str | None = None
    mode: Literal["standard"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    """current_turn: leave out thoughts before the user's last message; else the chat template decides."""
    summary: str | None = None
    """auto, concise or detailed: the thoughts themselves are sent as the summary."""
    generate_summary: str | None = None
    """The former name of `summary`."""

    @property
    def summary_kind(self) -> str | None:
        """Return the kind of summary that the request asks for; None: no summary."""
        asked = self.summary or self.generate_summary
        return asked if asked in ("auto", "concise", "detailed") else None


class ContextManagement(Body):
    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1)] | None = None
    """Tokens of a prompt above which the conversation is summarised; absent: nine tenths of the context."""


class CacheOptions(Body):
    prewarm: bool = False
    """Evaluate the prompt and generate nothing."""
    comparison_response_id: str | None = None
    """Id of a stored response; the reply reports where the two prompts first differ."""


class ConversationName(Body):
    id: str


class ResponseRequest(SharedFields):
    """POST /v1/responses."""

    input: str | Annotated[list[Item], Field(min_length=1, fail_fast=True)]
    """A user message, or items of a conversation."""
    instructions: str | None = None
    """A system message before all others. The instructions of the previous response do not apply."""
    previous_response_id: str | None = None
    """A stored response whose conversation this response continues; its cache_salt must be equal."""
    conversation: str | ConversationName | None = None
    """A conversation with an equal cache_salt. Its items precede the input; input and reply are added to it
    once the reply is complete."""
    store: bool = True
    """true: store the response, so that later requests can name it."""
    background: bool = False
    """true: continue without this connection. The answer is a queued response, or a stream that can be left
    and read again by the response's id. The response is stored."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[list[AnyTool], Field(fail_fast=True)] = Field(default_factory=list[AnyTool])
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[str], Field(fail_fast=True)] = Field(default_factory=list[str])
    """Further data to return: message.output_text.logprobs, or reasoning.encrypted_content, which contains
    the thoughts. Other values concern tools that this server does not run."""
    service_tier: str | None = None
    """Copied to the response; there is only one tier."""
    context_management: Annotated[list[ContextManagement], Field(max_length=1, fail_fast=True)] = Field(
        default_factory=list[ContextManagement]
    )
    prompt_cache_options: CacheOptions = Field(default_factory=CacheOptions)
    top_logprobs: TopLogprobs | None = None
    """Above 0, logprobs are included."""
    truncation: Literal["auto", "disabled"] = "disabled"
    """auto: a reply that reaches the end of the context continues (see context_shift of a chat completion).
    The input itself must fit."""
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA), at_most(MAX_METADATA)] = Field(
        default_factory=dict[str, str]
    )
    """Copied to the response."""

    unsupported: ClassVar[Neutral] = {
        **UNSUPPORTED,
        "moderation": (),
        "multi_agent": ({"enabled": False},),
        "prompt": (),
    }

    def contradiction(self) -> tuple[str, str] | None:
        if self.background and not self.store:
            return "store", "a background response is stored: leave store out, or set it to true"
        if self.conversation is not None and self.previous_response_id is not None:
            return "conversation", "contradicts previous_response_id: give one of them"
        return super().contradiction()

    @property
    def conversation_id(self) -> str | None:
        """Return the conversation's id, whether the request gives it as a text or in an object."""
        given = self.conversation
        return given.id if isinstance(given, ConversationName) else given

    @property
    def with_logprobs(self) -> bool:
        return "message.output_text.logprobs" in self.include or bool(self.top_logprobs)

    @property
    def prewarms(self) -> bool:
        """True if the prompt is evaluated and nothing is generated."""
        return self.prompt_cache_options.prewarm

    @property
    def items(self) -> Sequence[Item]:
        """Return the input as items."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input
