"""Answers of the Messages API."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from server.api.contract.figure_shapes import Metrics, Timings
from server.api.contract.quantities import Natural, Positive

StopReason = TypeAliasType(
    "StopReason",
    Literal[
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "compaction",
        "model_context_window_exceeded",
        None,
    ],
)
"""Null while the reply is generated. model_context_window_exceeded: the context was full before max_tokens.
compaction: the message is a summary.
"""


class MessageOutputTokens(TypedDict):
    thinking_tokens: Natural
    """Tokens of thoughts and their markers."""


class MessageUsage(TypedDict):
    input_tokens: Natural
    """Tokens of the prompt that were not cached."""
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: Natural
    output_tokens: Natural
    """Tokens of the reply so far."""
    output_tokens_details: MessageOutputTokens


class ContentBlockText(TypedDict):
    type: Literal["text"]
    text: str


class ContentBlockThinking(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str
    """The encoded thoughts if `thinking` does not show them; otherwise it has no meaning."""


class ContentBlockToolUse(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    """The arguments; empty if the reply ended within them."""


class ContentBlockCompaction(TypedDict):
    type: Literal["compaction"]
    content: str | None
    """A summary that replaces all messages before it; null if the model wrote no summary."""


ContentBlock = TypeAliasType(
    "ContentBlock",
    ContentBlockText | ContentBlockThinking | ContentBlockToolUse | ContentBlockCompaction,
)


class AppliedClearToolUses(TypedDict):
    type: Literal["clear_tool_uses_20250919"]
    cleared_tool_uses: Positive
    cleared_input_tokens: int


class AppliedClearThinking(TypedDict):
    type: Literal["clear_thinking_20251015"]
    cleared_thinking_turns: Positive
    cleared_input_tokens: int


class AppliedContextEdits(TypedDict):
    applied_edits: list[AppliedClearToolUses | AppliedClearThinking]
    """The parts that were left out of the conversation."""


class CacheMiss(TypedDict):
    type: Literal["tools_changed", "system_changed", "messages_changed", "previous_message_not_found"]
    cache_missed_input_tokens: NotRequired[Positive]


class CacheDiagnostics(TypedDict):
    cache_miss_reason: CacheMiss


class AssistantMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    """The model's name in the request."""
    content: list[ContentBlock]
    stop_reason: StopReason
    stop_sequence: str | None
    """The stop sequence that ended the reply; null if none did."""
    diagnostics: NotRequired[CacheDiagnostics | None]
    """Null if the prompt begins with the whole earlier prompt."""
    usage: MessageUsage
    context_management: NotRequired[AppliedContextEdits]
    warnings: NotRequired[list[str]]
    """Sentences about parts of the request that were left out."""
    timings: NotRequired[Timings]
    metrics: NotRequired[Metrics]


class MessagesErrorDetails(TypedDict):
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
        "timeout_error",
    ]
    message: str


class MessagesError(TypedDict):
    """An error in Anthropic's form."""

    type: Literal["error"]
    error: MessagesErrorDetails
    request_id: str | None
    """The value of the header x-request-id."""


class MessagesEventMessageStart(TypedDict):
    type: Literal["message_start"]
    message: AssistantMessage


class MessagesEventPing(TypedDict):
    type: Literal["ping", "message_stop"]


class MessagesEventContentBlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: Natural
    content_block: ContentBlock


class BlockDeltaTextDelta(TypedDict):
    type: Literal["text_delta"]
    text: Annotated[str, Field(min_length=1)]


class BlockDeltaThinkingDelta(TypedDict):
    type: Literal["thinking_delta"]
    thinking: Annotated[str, Field(min_length=1)]


class BlockDeltaSignatureDelta(TypedDict):
    type: Literal["signature_delta"]
    signature: str


class BlockDeltaInputJsonDelta(TypedDict):
    type: Literal["input_json_delta"]
    partial_json: Annotated[str, Field(min_length=1)]


class BlockDeltaCompactionDelta(TypedDict):
    type: Literal["compaction_delta"]
    content: str | None
    """The whole summary."""


class MessagesEventContentBlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: Natural
    delta: (
        BlockDeltaTextDelta
        | BlockDeltaThinkingDelta
        | BlockDeltaSignatureDelta
        | BlockDeltaInputJsonDelta
        | BlockDeltaCompactionDelta
    )


class MessagesEventContentBlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: Natural


class MessagesEventMessageDeltaDelta(TypedDict):
    stop_reason: StopReason
    stop_sequence: str | None


class MessagesEventMessageDelta(TypedDict):
    type: Literal["message_delta"]
    delta: MessagesEventMessageDeltaDelta
    usage: MessageUsage
    context_management: NotRequired[AppliedContextEdits]
    timings: NotRequired[Timings]
    metrics: NotRequired[Metrics]


MessagesEvent = TypeAliasType(
    "MessagesEvent",
    MessagesEventMessageStart
    | MessagesEventPing
    | MessagesEventContentBlockStart
    | MessagesEventContentBlockDelta
    | MessagesEventContentBlockStop
    | MessagesEventMessageDelta
    | MessagesError,
)
"""First message_start and ping. Then, for each block in turn, content_block_start, deltas and
content_block_stop. Finally message_delta and message_stop. An error may end the stream at any point."""
