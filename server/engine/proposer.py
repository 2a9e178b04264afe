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


class Planned(NamedTuple):
    """The guesses of a step, one proposal per session. width: rows that the step has after padding, 0: no
    padding to a shape. spent_s: seconds that a draft model worked, or the lead waited, for the proposals.
    plain_s: seconds of its decode without the guesses, by what was measured; 0: there are none, or it is not
    known. least: rows that it is padded to since fewer take longer."""

    proposals: Sequence[Proposal]
    width: int = 0
    spent_s: float = 0.0
    plain_s: float = 0.0
    least: int = 0


class TimedStep(NamedTuple):
    """A step without prompt rows: n_rows rows were decoded in decode_s seconds with n_cells cells of the KV
    cache in use; the whole step took step_s seconds and committed n_tokens tokens of n_sessions sessions."""

    n_rows: int
    n_cells: int
    decode_s: float
    step_s: float
    n_tokens: int
    n_sessions: int


class Proposer:
    """Where guesses come from; this one has none. They may be stale or wrong: verification decides. Never
    blocks on a peer, but for a bounded wait that it expects to pay."""

    def drain(self, n_active: int) -> None:
        """Take in what arrived since the last step. n_active: sessions that have a slot or get one
        in this step."""

    def open(self, session: OpenedSession) -> None:
        """A session begins."""

    def rests(self) -> bool:
        """Whether nobody guesses in the next step for sessions without a grammar."""
        return False

    def passed(self, n_sessions: int, n_rows: int) -> None:
        """The next step, of n_rows rows, is a plain one, since nobody guesses for the n_sessions that draw a
        token in it, none of which has a grammar. Nothing is asked, and nobody told what it commits."""

    def propose(self, asks: Sequence[Ask], n_rows: int, n_cells: int) -> Planned:
        """Guesses for what follows the committed tokens, one proposal per ask, to be decoded beside n_rows
        rows with n_cells cells of the KV cache in use."""
        return Planned([NOTHING] * len(asks))

    def padded(self, n_rows: int, n_cells: int) -> int:
        """Rows that a step of n_rows rows without prompts takes least time with, padding included; n_rows
        where that is not known. n_cells: of the KV cache in use."""
        return n_rows

    def committed(self, session: int, n: int, tally: CountsBySource) -> None:
        """The last n tokens of the session's list are new, and all before them that nobody told. tally: of
        the proposal verified with them."""

    def stepped(self, planned: Planned, step: TimedStep) -> None:
        """What became of a step without prompt rows; planned: its guesses, one proposal per session."""

    def before(self) -> None:
        """A decode of many sessions comes next: send what waits for a decode, since during it is too late."""

    def meanwhile(self) -> None:
        """A GPU decodes: this thread has time for what nobody waits for."""

    def close(self, session: int, *, keep: bool) -> None:
        """The session ended. keep: the conversation may go on."""


NoProposer = Proposer  # a server without drafts
