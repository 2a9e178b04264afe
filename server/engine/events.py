"""What the engine reports of a generation: Started, Progress…, Committed…, then Finished or Failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from server.errors import DuoError
from server.sampling.logprobs import TokenLogprobs

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Started:
    """A slot was found."""

    n_prompt: int  # tokens of the prompt
    n_cached: int  # leading ones that are in the KV cache already
    slot: int = 0
    at: float = field(default=0.0, compare=False)  # seconds of the engine's clock


@dataclass(frozen=True, slots=True)
class Progress:
    """A part of the prompt is in the KV cache."""

    n_evaluated: int  # its leading tokens that are
    at: float = field(default=0.0, compare=False)  # as in Started
    # of its tokens after the last of these events, if the request asks; the first token has none
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(slots=True)  # frozen it takes 1 us to make instead of 0.2, for each session of a step
class Committed:
    """One step's tokens for this session. Not to be changed."""

    tokens: tuple[int, ...]  # at least one; a stop token is the last
    sources: tuple[str | None, ...]  # [i]: the drafter that guessed tokens[i], None if nobody did
    n_drafted: int = 0  # tokens verified in this step
    rejected: tuple[int, ...] = ()  # those that did not match, in order
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token if the request asks for them
    at: float = field(default=0.0, compare=False)  # as in Started
    # seconds the step would have taken without guesses; 0: it had none, or that is not known
    plain_s: float = field(default=0.0, compare=False)

    @property
    def n_accepted(self) -> int:
        return len(self.sources) - self.sources.count(None)


@dataclass
class Tally:
    """Counts of committed tokens: of one reply, of a client's request, of all requests."""

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
    """Tokens of one drafter in one generation: verified, and of those accepted."""

    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: DrafterCount) -> DrafterCount:
        return DrafterCount(self.drafted + other.drafted, self.accepted + other.accepted)


@dataclass(frozen=True, slots=True)
class Stats:
    """What a reply took."""

    n_prompt: int  # tokens of the prompt
    n_cached: int  # of those, reused ones
    n_predicted: int  # committed tokens, a stop token included
    n_steps: int  # that committed them
    prompt_ms: float  # from admission to the first committed token
    predicted_ms: float  # from the first committed token to the last
    n_drafted: int = 0  # guesses that were verified
    n_accepted: int = 0
    drafters: Mapping[str, DrafterCount] = field(default_factory=dict[str, DrafterCount])
    accepted_per_step: tuple[int, ...] = ()  # [i]: steps with drafts of which i were accepted
    truncated: bool = False  # tokens in the middle of the context were dropped
    n_dropped: int = 0  # so many of them
    # predicted_ms without drafts, by the time of a decode without guesses while nobody drafts on these cores;
    # without Python's share of the saved steps
    undrafted_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """'stop': a stop token; 'length': max_tokens or the end of the context; 'cancelled': by the caller."""

    reason: FinishReason
    stats: Stats


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation ended with an error."""

    error: DuoError


Event: TypeAlias = Started | Progress | Committed | Finished | Failed
