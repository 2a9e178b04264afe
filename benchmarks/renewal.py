"""The asynchronous scheme's speed-up for any curve v(k), latency and whole or broken r. Pure.

Between two mismatches nothing is left to chance but when the next one comes: the lead's steps, and what has
arrived before each, follow from how the run began. So the expected time of a run is a sum over its steps,
each weighted with the probability a^C that the run gets there, C being its tokens committed before.

Times are counted from the mismatch that began the run. The drafter hears of it after one latency, its n-th
token arrives at n/r + 2 latency, and until then steps are plain. A run that began with a correction in the
lead's tree has its r - 1 tokens at once. Of a correction that was sent but had not yet arrived (the lead met
the mismatch in a plain step, before the wrong guess itself came) they come `delay` later: how much depends
on the run before, so the runs are a Markov chain whose states are the delays, and the times are averaged over
its stationary distribution.

For v = 1 and latency 0 this is `formulas.asynchronous`; `formulas.waiting` with a whole number of drafts.
Assumed beyond that: a drafter that neither pauses nor learns of anything late, guesses independent of each
other, corrections (also those of a correction's own wrong guesses) drafted in no time of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.formulas import MOST_DRAFTED, Curve, flat, run_length

TIE = 1e-9  # a draft that arrives this little after a step began belongs to the step
NEGLIGIBLE = 1e-9  # probability of getting so far in a run

State: TypeAlias = float | None
"""How a run begins: without a correction (None), or with one that arrives this much later."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Symbols as in formulas.py. k_max: most drafted tokens verified in one step. wait: after a mismatch
    without a correction the lead waits for so many drafts (0: never)."""

    a: float
    r: float
    latency: float = 0.0
    h: float = 0.0
    v: Curve = flat
    k_max: int = MOST_DRAFTED
    wait: int = 0

    @property
    def branch(self) -> int:
        """Tokens after a correction drafted in advance: what a drafter at this speed is ahead anyway."""
        return max(0, math.floor(self.r) - 1)


@dataclass(frozen=True, slots=True)
class _Step:
    """The run's tokens first, first + 1, …, last (counted from 1) are decided at `end`, `duration` after the
    step before ended."""

    first: int
    last: int
    end: float
    duration: float


def speedup(scheme: Scheme) -> float:
    """Tokens per tt."""
    times: dict[State, float] = {}
    moves: dict[State, dict[State, float]] = {}
    unseen: list[State] = [None]
    while unseen:
        state = unseen.pop()
        if state not in times:
            steps = list(_steps(scheme, state))
            times[state] = sum(scheme.a ** (step.first - 1) * step.duration for step in steps)
            moves[state] = _moves(scheme, state, steps)
            unseen += moves[state]
    shares = _stationary(moves)
    return run_length(scheme.a) / sum(shares[state] * times[state] for state in times)


def _steps(scheme: Scheme, state: State) -> Iterator[_Step]:
    """The steps of a run that began so, as far as it is likely to get."""
    waited = scheme.wait / scheme.r + 2 * scheme.latency if scheme.wait and state is None else 0.0
    before, now, committed = 0.0, waited, 0
    while scheme.a**committed > NEGLIGIBLE:
        n_drafted = min(scheme.k_max, max(0, _arrived(scheme, state, now) - committed))
        now += scheme.v(n_drafted)
        yield _Step(committed + 1, committed + n_drafted + 1, now, now - before)
        before, committed = now, committed + n_drafted + 1


def _arrived(scheme: Scheme, state: State, now: float) -> int:
    """How many tokens of the run have been drafted and have arrived."""
    n = max(0, math.floor(scheme.r * (now - 2 * scheme.latency) + TIE * scheme.r))
    if state is not None and now >= state - TIE:
        n += scheme.branch
    return n


def _moves(scheme: Scheme, state: State, steps: list[_Step]) -> dict[State, float]:
    """Probability of how the next run begins."""
    moves: dict[State, float] = {None: 1 - scheme.h}
    for step in steps if scheme.h else ():
        for position in range(step.first, step.last + 1):
            sent = _arrival(scheme, state, position)
            delay = round(max(0.0, sent - step.end), 9)
            p = scheme.a ** (position - 1) * (1 - scheme.a)
            moves[delay] = moves.get(delay, 0.0) + scheme.h * p
    return moves


def _arrival(scheme: Scheme, state: State, position: int) -> float:
    """When the guess for this position of the run arrives, and with it the correction of it."""
    if state is not None:
        if position <= scheme.branch:
            return state
        position -= scheme.branch
    return 2 * scheme.latency + position / scheme.r


def _stationary(moves: dict[State, dict[State, float]]) -> dict[State, float]:
    """By iteration: the chain forgets where it began within a few runs, since most delays are 0."""
    shares = {state: 1 / len(moves) for state in moves}
    for _ in range(10_000):
        after = dict.fromkeys(moves, 0.0)
        for state, share in shares.items():
            total = sum(moves[state].values())
            for target, p in moves[state].items():
                after[target] += share * p / total
        change = max(abs(after[state] - shares[state]) for state in moves)
        # Half of the old: a chain of two states that alternate would never settle
        shares = {state: (after[state] + shares[state]) / 2 for state in moves}
        if change < 1e-12:
            break
    return shares
