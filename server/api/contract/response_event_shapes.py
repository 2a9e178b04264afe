"""Events of a streamed response."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from server.api.contract.figure_shapes import ProgressShape, Timings
from server.api.contract.quantities import Natural
from server.api.contract.response_shapes import OutputItem, OutputPart, Response, ResponseLogprobs


class ResponseEventReasoningSummaryPartAdded(TypedDict):
    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    summary_index: Natural
    part: OutputPart


class ResponseEventReasoningSummaryTextDelta(TypedDict):
    type: Literal["response.reasoning_summary_text.delta"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    summary_index: Natural
    delta: Annotated[str, Field(min_length=1)]


class ResponseEventReasoningSummaryTextDone(TypedDict):
    type: Literal["response.reasoning_summary_text.done"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    summary_index: Natural
    text: str


class ResponseEventCustomToolCallInputDelta(TypedDict):
    type: Literal["response.custom_tool_call_input.delta"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    delta: Annotated[str, Field(min_length=1)]


class ResponseEventCustomToolCallInputDone(TypedDict):
    type: Literal["response.custom_tool_call_input.done"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    input: str


class ResponseEventCreated(TypedDict):
    prompt_progress: NotRequired[ProgressShape]
    timings: NotRequired[Timings]
    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: Natural
    response: Response


class ResponseEventOutputItemAdded(TypedDict):
    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    output_index: Natural
    item: OutputItem


class ResponseEventContentPartAdded(TypedDict):
    type: Literal["response.content_part.added", "response.content_part.done"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    content_index: Natural
    part: OutputPart


class ResponseEventOutputTextDelta(TypedDict):
    type: Literal["response.output_text.delta"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    content_index: Natural
    delta: Annotated[str, Field(min_length=1)]
    logprobs: ResponseLogprobs


class ResponseEventOutputTextDone(TypedDict):
    type: Literal["response.output_text.done"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    content_index: Natural
    text: str
    logprobs: ResponseLogprobs


class ResponseEventReasoningTextDelta(TypedDict):
    type: Literal["response.reasoning_text.delta"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    content_index: Natural
    delta: Annotated[str, Field(min_length=1)]


class ResponseEventReasoningTextDone(TypedDict):
    type: Literal["response.reasoning_text.done"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    content_index: Natural
    text: str


class ResponseEventFunctionCallArgumentsDelta(TypedDict):
    type: Literal["response.function_call_arguments.delta"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    delta: Annotated[str, Field(min_length=1)]


class ResponseEventFunctionCallArgumentsDone(TypedDict):
    type: Literal["response.function_call_arguments.done"]
    sequence_number: Natural
    timings: NotRequired[Timings]
    item_id: str
    output_index: Natural
    name: str
    arguments: str


class ResponseEventError(TypedDict):
    """Sent if the store of replies does not answer. The stream can later be read on from this event."""

    type: Literal["error"]
    sequence_number: Natural
    code: str
    message: str
    param: None


ResponseEvent = TypeAliasType(
    "ResponseEvent",
    ResponseEventReasoningSummaryPartAdded
    | ResponseEventReasoningSummaryTextDelta
    | ResponseEventReasoningSummaryTextDone
    | ResponseEventCustomToolCallInputDelta
    | ResponseEventCustomToolCallInputDone
    | ResponseEventCreated
    | ResponseEventError
    | ResponseEventOutputItemAdded
    | ResponseEventContentPartAdded
    | ResponseEventOutputTextDelta
    | ResponseEventOutputTextDone
    | ResponseEventReasoningTextDelta
    | ResponseEventReasoningTextDone
    | ResponseEventFunctionCallArgumentsDelta
    | ResponseEventFunctionCallArgumentsDone,
)
"""For each item in turn: first response.output_item.added. Then for text or thoughts
response.content_part.added, deltas, a done event and response.content_part.done; for a call, deltas and a
done event. Finally response.output_item.done."""
