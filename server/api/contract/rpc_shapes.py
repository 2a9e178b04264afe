"""Answers of JSON-RPC calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypeAliasType, TypedDict

from server.api.contract.figure_shapes import Sources, Timings, Tokens
from server.api.contract.quantities import Fraction, Natural, Positive
from server.api.contract.server_shapes import HealthExactness, HealthGate, HealthSlots


class RpcErrorData(TypedDict):
    """The fields of ErrorDetails except the message, and the seconds until a retry makes sense."""

    type: str
    param: str | None
    code: str | None
    retry_after: NotRequired[int]


class RpcError(TypedDict):
    code: int
    message: str
    data: NotRequired[RpcErrorData]
    """The fields of ErrorDetails except the message, and the seconds until a retry makes sense."""


@with_config(ConfigDict(json_schema_extra={"oneOf": [{"required": ["result"]}, {"required": ["error"]}]}))
class RpcReply(TypedDict):
    jsonrpc: Literal["2.0"]
    id: str | float | None
    """The id of the call; null if it could not be read."""
    result: NotRequired[dict[str, Any]]
    """The result of a successful call. Its schema's name is RpcResult followed by the method."""
    error: NotRequired[RpcError]


RpcBatchReply = TypeAliasType("RpcBatchReply", Annotated[list[RpcReply], Field(min_length=1)])


class RpcResultInit(TypedDict):
    model: str
    description: str
    n_ctx: int
    n_params: int
    n_vocab: int
    bos: int | None
    eos: int | None
    version: str
    methods: list[str]


class RpcResultPollSystemStatus(TypedDict):
    status: Literal["ok", "loading", "draining", "stuck"]
    slots: HealthSlots
    queued: Natural
    async_completions: Natural
    """Number of open handles."""


class RpcResultTokenize(TypedDict):
    tokens: list[Natural]
    length: Natural


class RpcPromptStats(TypedDict):
    length: Positive
    cached: Natural
    evaluated: Natural


class RpcResultGetCompletion(TypedDict):
    content: str
    completion_probabilities: NotRequired[list[dict[str, Any]]]
    """Probabilities of the content's tokens, as in Logprobs; only with n_probs or logprobs."""
    tokens: NotRequired[Tokens]
    sources: NotRequired[Sources]
    tokens_predicted: Natural
    tokens_evaluated: Positive
    """Tokens of the prompt, including cached ones."""
    truncated: bool
    """true: a part of the context was dropped to continue the reply."""
    stopped_eos: bool
    stopped_word: bool
    stopped_limit: bool
    stopping_word: str
    """The stop string that ended the reply; empty if none did."""
    timings: Timings
    prompt_stats: RpcPromptStats


class RpcBeganPromptStats(TypedDict):
    length: Positive


class RpcResultAsyncCompletionInit(TypedDict):
    handle: str
    prompt_stats: RpcBeganPromptStats


@with_config(ConfigDict(extra="allow"))
class RpcCompletionUpdate(TypedDict):
    content: str
    stop: bool


class RpcResultAsyncCompletionPoll(TypedDict):
    completion_updates: list[RpcCompletionUpdate]
    """Updates since the last poll, in order. The last update has the final statistics."""
    finished: bool
    """true: there are no more updates, and the handle is no longer valid."""


class RpcResultAsyncCompletionCancel(TypedDict):
    cancelled: Literal[True]


class RpcDrafter(TypedDict):
    id: str
    guess_ms: float
    """Milliseconds per guess, by its latest message; 0: unknown."""
    name: str
    """Name shown to people."""
    kind: str
    """Source of its guesses: model, head, engine, browser, lookup or replay."""
    model: str
    state: Literal["accepted", "refused"]
    reason: str | None
    """Why the drafter was refused; null if it was not."""
    rests: str | None
    """Why the drafter is paused; null if it is not."""
    counts: dict[str, int]


class RpcDraftSources(TypedDict):
    num_draft_tokens: Natural
    num_accepted_draft_tokens: Natural
    draft_acceptance_rate: Fraction


class RpcResultSpeculativeStatus(TypedDict):
    """Numbers of drafts since the server started."""

    draft_mode: Literal["async", "sync"]
    exactness: HealthExactness
    gate: HealthGate
    drafters: list[RpcDrafter]
    steps: Natural
    tokens_predicted: Natural
    num_draft_tokens: Natural
    num_accepted_draft_tokens: Natural
    draft_acceptance_rate: Fraction
    sources: dict[str, RpcDraftSources]
    """Drafted tokens of ended requests, by drafter."""
