"""Interface between the engine and sources of guesses: drafters, a model in the lead, lookups, or none.

Called by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from server.engine.request import Speculation
from server.sampling.draw import Distribution
from server.sampling.params import SamplingParams

ROOT = -1
"""Parent of a proposal's first nodes: the last committed token."""


CountsBySource: TypeAlias = Mapping[str, tuple[int, int]]
"""For each source: (number of verified guesses, number of accepted guesses)."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tree of guessed tokens. Children of one node have different tokens."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()  # by node: its parent, an earlier node or ROOT
    sources: tuple[str, ...] = ()  # by node: the source that guessed it
    # by node: the distribution from which it was sampled; only for rejection.py
    drafted: tuple[Distribution, ...] = ()
    probabilities: tuple[float, ...] = ()  # by node: probability that its whole path is right; descending

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, n: int) -> Proposal:
        """Return a proposal of the first n guesses, without their distributions."""
        if n == len(self.tokens) and not self.drafted:
            return self
        return Proposal(self.tokens[:n], self.parents[:n], self.sources[:n]) if n else NOTHING

    def child(self, parent: int, token: int) -> int | None:
        """Return the node with this token below this parent, None if there is none."""
        tokens, at = self.tokens, parent + 1
        while token in tokens[at:]:
            at = tokens.index(token, at)
            if self.parents[at] == parent:
                return at
            at += 1
        return None

    def tally(self, accepted: Sequence[int]) -> CountsBySource:
        """Return each source's numbers of verified and accepted guesses; `accepted`: indices of nodes."""
        if not self.sources:
            return {}
        right = [self.sources[node] for node in accepted]
        return {source: (self.sources.count(source), right.count(source)) for source in set(self.sources)}


NOTHING = Proposal()


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session for which a proposer makes guesses."""

    id: int
    # the engine's own list, which grows; the noise of tokens[i] has the position i + n_dropped
    tokens: Sequence[int]
    sampling: SamplingParams  # the parameters that drafters mirror
    bounds: Speculation
    n_dropped: int = 0
    # returns the session's sequence in the target's KV cache (-1: none), and the number of tokens in it
    evaluated: Callable[[], tuple[int, int]] = lambda: (-1, 0)


class Ask(NamedTuple):
    """A request for guesses of one session in the next step."""

    session: int  # its id
    limit: int  # maximum guesses
    forced: tuple[int, ...] = ()  # tokens that the session's grammar forces to follow
    # returns True if the grammar allows this path of guesses; None: it allows any
    allows: Callable[[Sequence[int]], bool] | None = None
    n_pending: int = 1  # rows that the step decodes for the session even without guesses
    seq: int = -1  # the session's sequence in the target's KV cache


class Upcoming(NamedTuple):
    """The next step, as known before guesses are requested."""

    n_active: int  # sessions that have a slot, or wait for one
    n_deciding: int = 0  # of these, sessions that draw a token in this step and may have guesses
    n_rows: int = 0  # rows of the step without guesses
    n_cells: int = 0  # cells of the KV cache in use
    has_grammar: bool = False  # at least one session that draws a token has a grammar
    asks: Callable[[], Sequence[Ask]] = tuple  # returns one Ask for each session that draws a token
    may_pad: Callable[[], bool] = bool  # returns True if the step may be padded
    prompts: Callable[[], Sequence[int]] = (
        tuple  # returns the sessions whose prompt is evaluated in this step
    )


@dataclass(slots=True)
class Plan:
    """Guesses and padding of a step. Not to be changed once the engine has it."""

    proposals: Sequence[Proposal] = ()  # one for each Ask; empty: no guesses
    width: int = 0  # rows to pad the step to; 0: no padding
    # True: keep the sequences of the step's rows fixed too, so that its CUDA graph can be reused
    is_shape: bool = False
    # seconds that this decode would take without guesses, estimated from measured decodes; 0: unknown, or
    # the step has no guesses
    undrafted_s: float = 0.0
    spent_s: float = 0.0  # seconds that a model in the lead took to draft
    asked: bool = True  # a source was asked for guesses, so learn() needs the outcomes


class Outcome(NamedTuple):
    """Tokens and verified guesses of one session in a step."""

    session: int
    n_tokens: int  # committed tokens, the last ones of the session's list
    tally: CountsBySource  # guesses of the verified proposal


class StepTiming(NamedTuple):
    """Times of a step without prompt rows."""

    n_rows: int  # decoded rows, padding included
    n_cells: int  # cells of the KV cache in use
    decode_s: float  # seconds of the decode
    step_s: float  # seconds of the whole step
    n_tokens: int  # tokens committed in all sessions
    n_sessions: int


class Step(NamedTuple):
    """A finished step: its plan, times and outcomes."""

    plan: Plan
    timing: StepTiming | None  # None if it had rows of prompts or beam searches
    outcomes: Sequence[Outcome] = ()  # of the sessions in the plan


class Proposer:
    """Source of guesses; this base class has none.

    Guesses may be stale or wrong, since verification decides. No method may wait for another process.
    """

    def open(self, session: OpenedSession) -> None:
        """Add a session that begins."""

    def close(self, session: int, *, keep: bool) -> None:
        """Forget a session that ended; unknown ids are ignored.

        Args:
            session: Its id.
            keep: True if the conversation may continue later.
        """

    def plan(self, step: Upcoming) -> Plan:
        """Return the plan of the next step. An idle engine calls it too, without sessions."""
        return Plan(asked=False)

    def learn(self, step: Step) -> None:
        """Learn from a finished step."""

    def meanwhile(self, plan: Plan, *, decodes: bool = True) -> None:
        """Do deferred work while a GPU decodes.

        Args:
            plan: The plan of the step that is decoded.
            decodes: True if the decode is running; False if it begins after this call, so only urgent work
                may be done.
        """


NoProposer = Proposer  # a server without drafts
