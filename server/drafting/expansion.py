"""Choose a drafter's next guesses, to gain the most tokens per second of its time. Pure.

The worth of a guess is the probability that the lead reaches the guess's position. A guess may follow the end
of the path, the end of a branch, or the second or third guess for a position, with which a new branch begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from server.drafting.branch import NO_SEQ, Branch
from server.drafting.draft_session import DraftSession
from server.estimators import Ratio, Smoothed
from server.sampling.draft_token import DraftGuess

# Minimum probability of a path that gets another guess: 13 guesses of 0.8 each reach it. 0.1: 10; 0.025: 16.
PATH_MIN = 0.05
# Weight of a new measurement in the mean time of a decode or of a guess: a changed time is known after 20
# measurements. Half: after 40; twice: after 10.
TD_WEIGHT = 0.05
MISTAKES_KEPT = 0.95  # weight of past mistakes per commit: about 20 commits count. 0.9: 10; 0.975: 40


class Leaf(NamedTuple):
    """A position where a session's tree may grow by one guess."""

    gain: float  # probability that the lead reaches it
    session: DraftSession
    branch: Branch | None = None  # None: the path, or a new branch
    fork: int = 0  # position at which the new branch begins
    second: DraftGuess | None = None  # first guess of the new branch


@dataclass(frozen=True, slots=True)
class Expansion:
    """Limits of a session's tree."""

    path_min: float  # minimum probability of a path that grows
    limit: int  # maximum tokens of a sequence
    eog: frozenset[int]  # tokens that end a text

    def goes_on(self, session: DraftSession, token: int) -> bool:
        """Return True if the path may grow beyond its next token `token`, of yet unknown probability."""
        return len(session.tokens) + 1 < self.limit and self._may_grow(
            session, len(session.tokens) + 1, token
        )

    def _may_grow(self, session: DraftSession, length: int, last: int) -> bool:
        """Return True if a guess may follow the session's first `length` tokens, which end with `last`."""
        room = length < session.n_committed + session.max_ahead
        return room and session.score >= self.path_min and last not in self.eog

    def leaves(self, session: DraftSession, floor: float) -> Iterator[Leaf]:
        """Yield leaves for a guess: the path's end, and branches with a probability of at least `floor`."""
        if self._may_grow(session, len(session.tokens), session.tokens[-1]):
            yield Leaf(session.score, session)
        if session.seq == NO_SEQ:
            return
        most = min(session.n_committed + session.max_ahead, self.limit)
        for branch in session.branches:
            gain = session.score_of(branch)
            grows = branch.seq != NO_SEQ and branch.end < most
            if gain >= floor and grows and branch.guesses[-1].token not in self.eog:
                yield Leaf(gain, session, branch)
        for gain, fork, second in session.alternatives():
            if gain >= floor and fork <= session.n_kv and second.token not in self.eog:
                yield Leaf(gain, session, None, fork, second)


class Slack:
    """Opportunity cost of a decode that guesses for branches only.

    If the lead rejects the path during such a decode, guesses on the new path begin half a decode late on
    average.
    """

    def __init__(self) -> None:
        self._mistakes = Ratio(MISTAKES_KEPT)

    def committed(self, n_mistakes: int, step_s: float) -> None:
        """Count n_mistakes tokens that were committed within step_s seconds without having been guessed."""
        self._mistakes.observe(n_mistakes, step_s)

    def floor(self, td_s: float, n_sessions: int) -> float:
        """Return the minimum probability of a branch that is worth a decode of td_s seconds.

        It equals the expected number of mispredicted tokens in td_s / 2 seconds, in n_sessions sessions
        together. Infinite before the first commit.
        """
        return self._mistakes.value * n_sessions * td_s / 2 if self._mistakes.weight else math.inf


class DecodeTimes:
    """Seconds of a decode by rows, and the number of rows with the most tokens per second."""

    def __init__(self, steady: Mapping[int, float]) -> None:
        """Begin with measured seconds by rows, from 1 on; {}: rows cost nothing."""
        self._steady = steady or {1: 1.0}
        self._most = max(self._steady)
        self.guess_s = Smoothed(TD_WEIGHT)  # seconds to make a guess from a row of logits

    def seconds(self, n_rows: int) -> float:
        """Return the seconds to decode n_rows rows and to make a guess from each."""
        guess_s = n_rows * self.guess_s.value
        if n_rows <= self._most:
            return guess_s + self._steady[n_rows]
        per_row = (self._steady[self._most] - self._steady[1]) / max(1, self._most - 1)
        return guess_s + self._steady[self._most] + max(0.0, per_row) * (n_rows - self._most)

    def best(self, leaves: Iterable[Leaf]) -> list[Leaf]:
        """Return the most probable leaves: as many as gain the most tokens per second in one decode."""
        ranked = sorted(leaves, key=itemgetter(0), reverse=True)
        n, total, rate = 0, 0.0, 0.0
        for k, leaf in enumerate(ranked, start=1):
            total += leaf.gain
            seconds = self.seconds(k)
            if total > rate * seconds:
                n, rate = k, total / seconds
        return ranked[:n]
