"""Answers of JSON-RPC calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypeAliasType, TypedDict

from server.api.contract.figure_shapes import Sources, Timings, Tokens
from server.api.contract.quantities import Fraction, Natural, Positive
from server.api.contract.server_shapes import HealthExactness, HealthGate, HealthSlots


class RpcErrorData(TypedDict):
    """Details as in Error; retry_after in seconds."""

    type: str
    param: str | None
    code: str | None
    retry_after: NotRequired[int]


class RpcError(TypedDict):
    code: int
    message: str
    data: NotRequired[RpcErrorData]
    """Details as in Error; retry_after in seconds."""


@with_config(ConfigDict(json_schema_extra={"oneOf": [{"required": ["result"]}, {"required": ["error"]}]}))
class RpcReply(TypedDict):
    jsonrpc: Literal["2.0"]
    id: str | float | None
    """The call's; null where it could not be read."""
    result: NotRequired[dict[str, Any]]
    """Of a call that went well, see RpcResult and the method."""
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
    """Handles that are open."""


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
    """Of the content's tokens, as in Logprobs; only with n_probs or logprobs."""
    tokens: NotRequired[Tokens]
    sources: NotRequired[Sources]
    tokens_predicted: Natural
    tokens_evaluated: Positive
    """Of the prompt, those from the cache included."""
    truncated: bool
    """The middle of the context was forgotten on the way."""
    stopped_eos: bool
    stopped_word: bool
    stopped_limit: bool
    stopping_word: str
    """The stop string that ended it; else empty."""
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
    """What there is since the last poll, in order. With the last update come the figures."""
    finished: bool
    """The handle is forgotten then."""


class RpcResultAsyncCompletionCancel(TypedDict):
    cancelled: Literal[True]


class RpcDrafter(TypedDict):
    id: str
    guess_ms: float
    """Milliseconds of a guess by its latest message, 0 if unknown."""
    name: str
    """What people call it."""
    model: str
    state: Literal["accepted", "refused"]
    reason: str | None
    """Why it was refused."""
    rests: str | None
    """Why it rests, null if it does not."""
    counts: dict[str, int]


class RpcDraftSources(TypedDict):
    num_draft_tokens: Natural
    num_accepted_draft_tokens: Natural
    draft_acceptance_rate: Fraction


class RpcResultSpeculativeStatus(TypedDict):
    """Counts are those since the server started."""

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
    """By what drafted them, of ended requests."""
