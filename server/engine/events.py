"""Events of a generation: Started, Progress…, Committed…, then Finished or Failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from server.errors import DuoError
from server.sampling.logprobs import TokenLogprobs

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Started:
    """The request has a slot."""

    n_prompt: int  # tokens of the prompt
    n_cached: int  # leading tokens that were in the KV cache
    slot: int = 0
    at: float = field(default=0.0, compare=False)  # seconds, by the engine's clock


@dataclass(frozen=True, slots=True)
class Progress:
    """A part of the prompt has been evaluated."""

    n_evaluated: int  # leading tokens of the prompt in the KV cache
    at: float = field(default=0.0, compare=False)  # as in Started
    # logprobs of the prompt's tokens since the last Progress, if requested; the first token has none
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(slots=True)  # not frozen: making one takes 0.2 us instead of 1, for each session of a step
class Committed:
    """Event: the tokens that one step committed to a session. Treat it as immutable."""

    tokens: tuple[int, ...]  # at least one; a stop token is the last
    sources: tuple[str | None, ...]  # by token: the drafter that guessed it, None if nobody did
    n_drafted: int = 0  # guesses verified in this step
    rejected: tuple[int, ...] = ()  # guesses that did not match, in order
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token if the request asks for them
    at: float = field(default=0.0, compare=False)  # as in Started
    # estimated seconds that the step would take without guesses; 0: it had none, or unknown
    undrafted_s: float = field(default=0.0, compare=False)

    @property
    def n_accepted(self) -> int:
        return len(self.sources) - self.sources.count(None)


@dataclass
class Tally:
    """Counts of committed tokens of a reply, of a client's request, or of all requests."""

    n_predicted: int = 0
    n_steps: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    def count(self, step: Committed) -> None:
        self.n_predicted += len(step.tokens)
        self.n_steps += 1
        if step.n_drafted:
            self.n_drafted += step.n_drafted
            self.n_accepted += step.n_accepted


@dataclass(frozen=True, slots=True)
class DrafterCount:
    """Verified and accepted tokens of one drafter."""

    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: DrafterCount) -> DrafterCount:
        return DrafterCount(self.drafted + other.drafted, self.accepted + other.accepted)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts and times of a reply."""

    n_prompt: int  # tokens of the prompt
    n_cached: int  # tokens of the prompt that were in the KV cache
    n_predicted: int  # committed tokens, including a stop token
    n_steps: int  # steps that committed tokens
    prompt_ms: float  # from admission to the first committed token
    predicted_ms: float  # from the first committed token to the last
    n_drafted: int = 0  # guesses that were verified
    n_accepted: int = 0
    drafters: Mapping[str, DrafterCount] = field(default_factory=dict[str, DrafterCount])
    accepted_per_step: tuple[int, ...] = ()  # [n]: steps with guesses of which n were accepted
    truncated: bool = False  # tokens in the middle of the context were dropped
    n_dropped: int = 0  # number of these tokens
    # estimated predicted_ms if nobody had drafted: the time of decodes without guesses that no drafter slows
    # down. The Python time of the steps that drafts saved is not included
    undrafted_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The reply ended: at a stop token, at max_tokens, at the context's end, or because it was cancelled."""

    reason: FinishReason
    stats: Stats


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation ended with an error."""

    error: DuoError


Event: TypeAlias = Started | Progress | Committed | Finished | Failed
