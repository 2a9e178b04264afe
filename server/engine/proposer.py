"""The seam to whatever guesses ahead: drafters over the bus, a model beside, a lookup, or nothing.

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
"""The parent of a proposal's first nodes: the last committed token."""


CountsBySource: TypeAlias = Mapping[str, tuple[int, int]]
"""By source: guesses that were verified, and how many of these were accepted."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tree of guessed tokens. parents[i] < i or ROOT; siblings differ in token; sources[i] names who
    guessed tokens[i]. drafted[i]: what it was sampled from, for rejection.py only. probabilities[i]: that it
    is reached and right, descending."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    drafted: tuple[Distribution, ...] = ()
    probabilities: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, n: int) -> Proposal:
        """Its first n guesses, to be verified by lookup."""
        if n == len(self.tokens) and not self.drafted:
            return self
        return Proposal(self.tokens[:n], self.parents[:n], self.sources[:n]) if n else NOTHING

    def child(self, parent: int, token: int) -> int | None:
        """The index of the node with this token below this parent."""
        tokens, at = self.tokens, parent + 1
        while token in tokens[at:]:
            at = tokens.index(token, at)
            if self.parents[at] == parent:
                return at
            at += 1
        return None

    def tally(self, accepted: Sequence[int]) -> CountsBySource:
        """accepted: the nodes that were right, by index."""
        if not self.sources:
            return {}
        right = [self.sources[node] for node in accepted]
        return {source: (self.sources.count(source), right.count(source)) for source in set(self.sources)}


NOTHING = Proposal()


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """What to guess for. tokens: the engine's own list, which grows as tokens are committed; tokens[i] is
    drawn with the noise of position i + n_dropped. sampling: the part that drafters mirror."""

    id: int
    tokens: Sequence[int]
    sampling: SamplingParams
    bounds: Speculation
    n_dropped: int = 0


class Ask(NamedTuple):
    """At most `limit` guesses wanted for a session in the next step. forced: tokens that must follow, by the
    session's grammar; allows: whether a path of guesses may follow, None if any may. n_pending: rows of the
    session that are decoded before the guesses in any case. seq: its sequence in the target's KV cache."""

    session: int
    limit: int
    forced: tuple[int, ...] = ()
    allows: Callable[[Sequence[int]], bool] | None = None
    n_pending: int = 1
    seq: int = -1


@dataclass(slots=True)
class Upcoming:
    """The step that the engine is about to decode, before any guess. Not to be changed."""

    n_active: int  # sessions that have a slot, or get one as soon as one is free
    n_deciding: int = 0  # of them, those that draw a token in this step and may have guesses
    n_rows: int = 0  # rows without guesses
    n_cells: int = 0  # cells of the KV cache in use
    has_grammar: bool = False  # a grammar rules one of those that draw a token
    asks: Callable[[], Sequence[Ask]] = list  # one for each of those that draw a token
    may_pad: Callable[[], bool] = bool  # whether the step may have more rows than it needs


@dataclass(slots=True)
class Plan:
    """What the engine shall decode beside the step's own rows. Not to be changed once the engine has it."""

    proposals: Sequence[Proposal] = ()  # one for each ask; none: nobody guesses
    width: int = 0  # rows that the step is padded to; 0: it is not padded
    is_shape: bool = False  # steps of this width shall look alike, down to their sequences
    plain_s: float = 0.0  # seconds of the decode without guesses, as measured; 0: there are none, or unknown
    spent_s: float = 0.0  # seconds that a model in the lead took for the guesses
    asked: bool = True  # somebody was asked for guesses, and wants to hear what the step commits


class Outcome(NamedTuple):
    """What a step brought one session."""

    session: int
    n_tokens: int  # tokens that were committed, the last ones of the session's list
    tally: CountsBySource  # of the proposal that was verified


class StepTiming(NamedTuple):
    """How long a step without prompt rows took."""

    n_rows: int  # rows decoded, with padding
    n_cells: int  # cells of the KV cache in use
    decode_s: float  # seconds of the decode
    step_s: float  # seconds of the whole step
    n_tokens: int  # tokens committed in all sessions
    n_sessions: int


class Step(NamedTuple):
    """A step that is over: what was planned, how long it took, and what it committed."""

    plan: Plan
    timing: StepTiming | None  # None if it had rows of prompts or of beam searches
    outcomes: Sequence[Outcome] = ()  # of the sessions that were asked for


class Proposer:
    """Where guesses come from; this one has none. Guesses may be stale or wrong: verification decides. No
    method blocks on a peer."""

    def open(self, session: OpenedSession) -> None:
        """Take in a session that begins."""

    def close(self, session: int, *, keep: bool) -> None:
        """Forget a session that ended.

        Args:
            session: Its id. Unknown ones are ignored.
            keep: Whether the conversation may go on.
        """

    def plan(self, step: Upcoming) -> Plan:
        """Return the guesses of the next step. Also called, with no session, while the engine is idle."""
        return Plan(asked=False)

    def learn(self, step: Step) -> None:
        """Take in a step that is over."""

    def meanwhile(self, plan: Plan, *, decodes: bool = True) -> None:
        """Do what nobody waits for while a GPU decodes.

        Args:
            plan: The plan of the step that is decoded.
            decodes: False: that decode, of many sessions, begins next. Only what must not come late is done.
        """


NoProposer = Proposer  # a server without drafts
