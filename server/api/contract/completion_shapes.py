"""Answers of completions: chat, legacy, and llama-server's own format."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypeAliasType, TypedDict

from server.api.contract.figure_shapes import (
    LegacyLogprobsShape,
    Logprobs,
    Metrics,
    Probabilities,
    ProgressShape,
    Sources,
    Timings,
    Tokens,
    Usage,
)
from server.api.contract.quantities import Natural, Positive


class ToolCallFunction(TypedDict):
    name: Annotated[str, Field(min_length=1)]
    arguments: str
    """JSON text; incomplete if the reply ended within the call."""


class ToolCallShape(TypedDict):
    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"]
    function: ToolCallFunction


class CustomCallInput(TypedDict):
    name: Annotated[str, Field(min_length=1)]
    input: str


class CustomCallShape(TypedDict):
    """A call of a custom tool."""

    id: Annotated[str, Field(min_length=1)]
    type: Literal["custom"]
    custom: CustomCallInput


class ChatReply(TypedDict):
    role: Literal["assistant"]
    content: str | None
    """Null if the reply has only tool calls."""
    reasoning_content: NotRequired[Annotated[str, Field(min_length=1)]]
    tool_calls: NotRequired[Annotated[list[ToolCallShape | CustomCallShape], Field(min_length=1)]]
    refusal: None


class ChatChoice(TypedDict):
    index: Annotated[int, Field(ge=0, le=7)]
    message: ChatReply
    logprobs: Logprobs
    tokens: NotRequired[Tokens]
    sources: NotRequired[Sources]
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(TypedDict):
    id: Annotated[str, Field(pattern=r"^chatcmpl-")]
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[str]
    """Copied from the request, if it has one."""
    choices: Annotated[list[ChatChoice], Field(min_length=1, max_length=8)]
    """The n choices; with best_of, the likeliest first."""
    usage: Usage
    verbose: NotRequired[Annotated[dict[str, Any], Field(alias="__verbose")]]
    """The first reply as a NativeEnd."""
    timings: Timings
    metrics: Metrics


class ChunkFunction(TypedDict):
    name: NotRequired[Annotated[str, Field(min_length=1)]]
    arguments: str


class ChunkCustomCall(TypedDict):
    name: NotRequired[str]
    input: str


class ChunkCall(TypedDict):
    index: Natural
    id: NotRequired[Annotated[str, Field(min_length=1)]]
    type: NotRequired[Literal["function", "custom"]]
    function: NotRequired[ChunkFunction]
    custom: NotRequired[ChunkCustomCall]
    """Replaces `function` in a call of a custom tool."""


class ChunkDelta(TypedDict):
    """The role in a choice's first chunk, text in the following chunks, nothing in the last chunk.

    The last chunk of the choice that ends last has the timings and metrics of all choices.
    """

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[Annotated[str, Field(min_length=1)] | None]
    reasoning_content: NotRequired[Annotated[str, Field(min_length=1)]]
    tool_calls: NotRequired[Annotated[list[ChunkCall], Field(min_length=1, max_length=1)]]
    """A call begins with its id, type and name. All its arguments follow before the next call begins."""


class ChunkChoice(TypedDict):
    index: Annotated[int, Field(ge=0, le=7)]
    delta: ChunkDelta
    """The role in a choice's first chunk, text in the following chunks, nothing in the last chunk. The last
    chunk of the choice that ends last has the timings and metrics of all choices."""
    logprobs: Logprobs
    tokens: NotRequired[Tokens]
    sources: NotRequired[Sources]
    finish_reason: Literal["stop", "length", "tool_calls", None]


class ChatCompletionChunk(TypedDict):
    id: Annotated[str, Field(pattern=r"^chatcmpl-")]
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[str]
    """Copied from the request, if it has one."""
    choices: Annotated[list[ChunkChoice], Field(max_length=1)]
    """Empty in the last chunk when stream_options.include_usage is true."""
    usage: NotRequired[Usage | None]
    prompt_progress: NotRequired[ProgressShape]
    timings: NotRequired[Timings]
    metrics: NotRequired[Metrics]


class CompletionChoice(TypedDict):
    index: Annotated[int, Field(ge=0, le=63)]
    text: str
    logprobs: LegacyLogprobsShape
    tokens: NotRequired[Tokens]
    sources: NotRequired[Sources]
    finish_reason: Literal["stop", "length"]


class Completion(TypedDict):
    id: Annotated[str, Field(pattern=r"^cmpl-")]
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: Annotated[list[CompletionChoice], Field(min_length=1, max_length=64)]
    """The n choices for each prompt, in the order of the prompts; with best_of, the likeliest first."""
    usage: Usage
    timings: Timings
    metrics: Metrics


class CompletionChunkChoice(TypedDict):
    """A part of a choice. The first chunk has the prompt if `echo` is true; the last chunk has no text.

    The last chunk of the choice that ends last has the timings and metrics of all choices.
    """

    index: Annotated[int, Field(ge=0, le=63)]
    text: str
    logprobs: LegacyLogprobsShape
    tokens: NotRequired[Tokens]
    sources: NotRequired[Sources]
    finish_reason: Literal["stop", "length", None]


class CompletionChunk(TypedDict):
    id: Annotated[str, Field(pattern=r"^cmpl-")]
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: Annotated[list[CompletionChunkChoice], Field(max_length=1)]
    """Empty in the last chunk when stream_options.include_usage is true."""
    usage: NotRequired[Usage | None]
    prompt_progress: NotRequired[ProgressShape]
    timings: NotRequired[Timings]
    metrics: NotRequired[Metrics]


@with_config(ConfigDict(extra="allow"))
class NativeEnd(TypedDict):
    """The end of a reply: all fields, or those that response_fields names."""

    index: NotRequired[Natural]
    content: NotRequired[str]
    """Empty at the end of a stream."""
    tokens: NotRequired[list[Natural]]
    id_slot: NotRequired[Natural]
    stop: NotRequired[Literal[True]]
    model: NotRequired[str]
    tokens_predicted: NotRequired[Natural]
    tokens_evaluated: NotRequired[Positive]
    """Tokens of the prompt, including cached ones."""
    generation_settings: NotRequired[dict[str, Any]]
    """Settings of the reply, by request field."""
    prompt: NotRequired[str]
    """The prompt as it was tokenised, with control tokens written out."""
    has_new_line: NotRequired[bool]
    truncated: NotRequired[bool]
    """true: the context was full or was shifted."""
    stop_type: NotRequired[Literal["eos", "word", "limit"]]
    stopping_word: NotRequired[str]
    tokens_cached: NotRequired[Natural]
    """Tokens in the KV cache at the end."""
    timings: NotRequired[Timings]
    completion_probabilities: NotRequired[Probabilities]


NativeReply = TypeAliasType(
    "NativeReply", NativeEnd | Annotated[list[NativeEnd], Field(min_length=2, max_length=64)]
)


class NativePart(TypedDict):
    index: Natural
    content: str
    """The text since the last chunk; may be empty."""
    tokens: list[Natural]
    id_slot: Natural
    stop: Literal[False]
    tokens_predicted: Natural
    tokens_evaluated: Positive
    """Tokens of the prompt, including cached ones."""
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[ProgressShape]
    completion_probabilities: NotRequired[Probabilities]


NativeChunk = TypeAliasType("NativeChunk", NativeEnd | NativePart)


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: Positive


class Precompute(TypedDict):
    object: Literal["precompute"]
    completed: bool
    """false: stopped early, because another request needed the engine."""
    prompt_tokens: Natural
    cached_tokens: Natural
    """Tokens of the prompt that were reused from the cache."""
