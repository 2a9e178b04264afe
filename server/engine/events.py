"""What the engine reports about one generation, in order: Started, Committed…, then Finished or Failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from server.errors import DuoError
from server.sampling.logprobs import TokenLogprobs

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Started:
    """A slot was found. Of n_prompt tokens, the first n_cached are in the KV cache already."""

    n_prompt: int
    n_cached: int


@dataclass(frozen=True, slots=True)
class Committed:
    """One step's tokens for this session, at least one.

    sources[i] names the drafter whose guess tokens[i] confirms, None where the target chose it unaided.
    n_drafted tokens were verified in this step; rejected holds those that did not match, in order.
    logprobs has one entry per token if the request asks for them.
    A stop token, if one was chosen, is the last of `tokens`.
    """

    tokens: tuple[int, ...]
    sources: tuple[str | None, ...]
    n_drafted: int = 0
    rejected: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()

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
        self.n_drafted += step.n_drafted
        self.n_accepted += step.n_accepted


@dataclass(frozen=True, slots=True)
class DrafterCount:
    """What one drafter contributed to one generation: tokens verified, and of those accepted."""

    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: DrafterCount) -> DrafterCount:
        return DrafterCount(self.drafted + other.drafted, self.accepted + other.accepted)


@dataclass(frozen=True, slots=True)
class Stats:
    """Times in milliseconds. prompt_ms: admission to first committed token; predicted_ms: from there on.

    n_prompt counts all prompt tokens, n_cached those reused; n_predicted counts committed tokens, the stop
    token included; n_steps the decode steps that committed them. accepted_per_step[i] counts the steps with
    drafts of which i were accepted. truncated: the middle of the context was dropped on the way.
    """

    n_prompt: int
    n_cached: int
    n_predicted: int
    n_steps: int
    prompt_ms: float
    predicted_ms: float
    n_drafted: int = 0
    n_accepted: int = 0
    drafters: Mapping[str, DrafterCount] = field(default_factory=dict[str, DrafterCount])
    accepted_per_step: tuple[int, ...] = ()
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. 'stop': a stop token; 'length': max_tokens or the context; 'cancelled': by the caller."""

    reason: FinishReason
    stats: Stats


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation ended by an error inside the server."""

    error: DuoError


Event: TypeAlias = Started | Committed | Finished | Failed
