"""Answers of the Responses API."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypeAliasType, TypedDict

from server.api.contract.figure_shapes import Metrics, Timings
from server.api.contract.quantities import Byte, Logprob, Natural, Positive
from server.api.responses.response_request import ToolChoice
from server.api.responses.response_tools import AnyTool

ItemStatus = TypeAliasType("ItemStatus", Literal["in_progress", "completed", "incomplete"])


class ResponseTopLogprob(TypedDict):
    token: str
    logprob: Logprob
    bytes: list[Byte]


class ResponseLogprob(TypedDict):
    token: str
    logprob: Logprob
    bytes: list[Byte]
    top_logprobs: Annotated[list[ResponseTopLogprob], Field(max_length=20)]


ResponseLogprobs = TypeAliasType("ResponseLogprobs", list[ResponseLogprob])
"""Like Logprobs; empty unless requested."""


class OutputPartOutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)]
    logprobs: ResponseLogprobs


class OutputPartReasoningText(TypedDict):
    type: Literal["reasoning_text", "summary_text"]
    text: str


OutputPart = TypeAliasType("OutputPart", OutputPartOutputText | OutputPartReasoningText)


class OutputItemMessage(TypedDict):
    id: Annotated[str, Field(pattern=r"^msg_")]
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: Annotated[list[OutputPart], Field(max_length=1)]


class OutputItemReasoning(TypedDict):
    id: Annotated[str, Field(pattern=r"^rs_")]
    type: Literal["reasoning"]
    status: ItemStatus
    encrypted_content: NotRequired[str | None]
    summary: Annotated[list[OutputPart], Field(max_length=1)]
    """The thoughts themselves if reasoning.summary requests a summary; content is then empty."""
    content: Annotated[list[OutputPart], Field(max_length=1)]


class OutputItemFunctionCall(TypedDict):
    id: Annotated[str, Field(pattern=r"^fc_")]
    type: Literal["function_call"]
    status: ItemStatus
    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    namespace: NotRequired[Annotated[str, Field(min_length=1)]]
    arguments: str


class OutputItemCustomToolCall(TypedDict):
    id: Annotated[str, Field(pattern=r"^ctc_")]
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    namespace: NotRequired[Annotated[str, Field(min_length=1)]]
    input: str


class OutputItemToolSearchCall(TypedDict):
    id: Annotated[str, Field(pattern=r"^tsc_")]
    type: Literal["tool_search_call"]
    status: ItemStatus
    call_id: Annotated[str, Field(min_length=1)]
    execution: Literal["client"]
    arguments: dict[str, Any]


class OutputItemCompaction(TypedDict):
    """A summary that replaces all earlier items of the conversation except the user's messages."""

    id: Annotated[str, Field(pattern=r"^cmp_")]
    type: Literal["compaction"]
    encrypted_content: str


OutputItem = TypeAliasType(
    "OutputItem",
    OutputItemMessage
    | OutputItemReasoning
    | OutputItemFunctionCall
    | OutputItemCustomToolCall
    | OutputItemToolSearchCall
    | OutputItemCompaction,
)


class ResponseError(TypedDict):
    code: Literal["server_error"]
    message: str


class ResponseIncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]
    """The maximum number of tokens was reached, or the context is full."""


@with_config(ConfigDict(extra="allow"))
class ResponseTextFormat(TypedDict):
    type: Literal["text", "json_object", "json_schema"]


class ResponseText(TypedDict):
    format: ResponseTextFormat


class ResponseReasoning(TypedDict):
    effort: str | None
    summary: Literal["auto", "concise", "detailed", None]


class ResponseInputTokens(TypedDict):
    cached_tokens: Natural
    cache_write_tokens: Natural
    """Tokens of the prompt that were evaluated, that is, not cached."""


class ResponseOutputTokens(TypedDict):
    reasoning_tokens: Natural


class ResponseUsage(TypedDict):
    input_tokens: Positive
    input_tokens_details: ResponseInputTokens
    output_tokens: Natural
    output_tokens_details: ResponseOutputTokens
    total_tokens: Positive


class ResponseCacheDiagnostics(TypedDict):
    type: Literal["cache_hit", "cache_miss", "comparison_response_not_found"]
    reason: NotRequired[
        Literal["tools_changed", "reasoning_effort_changed", "context_compacted", "input_changed"]
    ]
    cache_missed_tokens: NotRequired[Positive]
    """Tokens of the earlier prompt that could not be reused."""
    comparison_reusable_tokens: NotRequired[Natural]
    """Number of equal tokens at the beginning of both prompts."""


class ConversationReference(TypedDict):
    id: Annotated[str, Field(pattern=r"^conv_")]


class Response(TypedDict):
    id: Annotated[str, Field(pattern=r"^resp_")]
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseError | None
    incomplete_details: ResponseIncompleteDetails | None
    model: str
    instructions: str | None
    previous_response_id: str | None
    conversation: NotRequired[ConversationReference]
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    tools: list[AnyTool]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    text: ResponseText
    reasoning: ResponseReasoning
    service_tier: NotRequired[str]
    warnings: NotRequired[list[str]]
    """Sentences about parts of the request that were left out, or about failed storage."""
    truncation: Literal["auto", "disabled"]
    store: bool
    metadata: dict[str, str]
    output: list[OutputItem]
    """Empty while the response is queued or in progress."""
    usage: ResponseUsage | None
    prompt_cache_diagnostics: NotRequired[ResponseCacheDiagnostics]
    """Where the prompt differs from comparison_response_id's prompt."""
    timings: NotRequired[Timings]
    metrics: NotRequired[Metrics]


class ResponseDeleted(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


@with_config(ConfigDict(extra="allow"))
class ListedItem(TypedDict):
    id: str
    type: str


class ConversationShape(TypedDict):
    id: Annotated[str, Field(pattern=r"^conv_")]
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(TypedDict):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class FoundStream(TypedDict):
    conversation_id: str
    is_done: bool
    total_bytes: Natural
    """Bytes of the stream; 0 while another lead writes it."""
    started_at: int
    completed_at: int
    """Unix seconds; 0 while the reply runs."""


class Compacted(TypedDict):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[ListedItem]
    usage: dict[str, Any]


class InputItems(TypedDict):
    object: Literal["list"]
    data: list[ListedItem]
    first_id: str | None
    last_id: str | None
    has_more: bool
