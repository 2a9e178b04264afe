"""How much faster than plain decoding drafts can make a lead. Pure.

Symbols. a: probability that a drafted token is the target's. r = tt/td: drafted tokens per one-token step of
the lead, whose time tt is the unit of all times here. k: drafted tokens verified in one step. v(k): time of
such a step; v(0) = 1. latency: one way between lead and drafter. h: share of mismatches for which a
correction with r - 1 tokens after it was drafted in advance and lies ready. Results are speed-ups over plain
decoding.

A run is what is committed after one mismatch up to and with the next: 1/(1-a) tokens on average. Between two
mismatches only the place of the next one is random: the lead's steps, and what has arrived before each,
follow from how the run began. So the expected time of a run is a sum over its steps, each weighted with the
probability a^C that the run gets there, C being its tokens committed before.

Times are counted from the mismatch that began the run. The drafter hears of it after one latency, its n-th
token arrives at n/r + 2 latency, and until then steps are plain. A run that began with a correction in the
lead's tree has its r - 1 tokens at once. A correction that was sent but had not yet arrived (the lead met the
mismatch in a plain step, before the wrong guess came) brings them `delay` later. The delay depends on the run
before, so the runs are a Markov chain whose states are the delays, and the times are averaged over its
stationary distribution.

Assumed beyond that: a drafter that neither pauses nor learns of anything late, guesses independent of each
other, corrections (also of a correction's own wrong guesses) drafted in no time of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np

Curve: TypeAlias = Callable[[int], float]
"""v(k): the time of a step that verifies k drafted tokens over that of a plain one; not decreasing."""

State: TypeAlias = float | None
"""How a run begins: without a correction (None), or with one that arrives this much later."""

MOST_DRAFTED = 512  # where searches over k end: 0.95^512 is 4e-12
TIE = 1e-9  # a draft that arrives this little after a step began belongs to the step
NEGLIGIBLE = 1e-9  # probability of getting so far in a run


def flat(k: int) -> float:
    """Verifying costs nothing, as on a target bound by memory bandwidth."""
    return 1.0


def staircase(times: Mapping[int, float]) -> Curve:
    """The curve through measured times by drafted tokens k; times[0] must be there. Between two measured
    widths it is that of the larger one; beyond the last it grows by the last one's time per row."""
    ks = sorted(times)
    plain, last = times[0], ks[-1]

    def v(k: int) -> float:
        for known in ks:
            if k <= known:
                return max(times[smaller] for smaller in ks if smaller <= known) / plain
        return v(last) * (k + 1) / (last + 1)

    return v


def run_length(a: float) -> float:
    """Tokens from one mismatch to the next, the correction included."""
    return 1 / (1 - a)


def per_step(a: float, k: int) -> float:
    """Tokens committed by a step that verifies k drafted ones in a chain: 1 + a + … + a^k."""
    return (1 - a ** (k + 1)) / (1 - a)


def asynchronous(a: float, r: float, h: float = 0.0) -> float:
    """The closed form of `speedup` for v = 1, no latency and a whole r.

    A run begins with a plain step: 1. Meanwhile the drafter drafts r tokens. The run goes on if the first of
    them is right: a. Each later step verifies r - 1 tokens and draws one more; the run outlives it if all r
    are right: a^r. Hence 1 + a + a a^r + … = 1 + a/(1-a^r). With a correction ready there is no plain step:
    1/(1-a^r)."""
    ready = 1 / (1 - a**r)
    return run_length(a) / ((1 - h) * (1 + a * ready) + h * ready)


def limit(a: float, r: float, v: Curve = flat) -> float:
    """What no chain of drafts can exceed: every step verifies the best number of tokens that the drafter can
    have drafted in its time."""
    useful = min(MOST_DRAFTED, math.ceil(math.log(1e-6) / math.log(a)))
    fits = [k for k in range(useful + 1) if k + 1 <= r * v(k)]
    return max((per_step(a, k) / v(k) for k in fits), default=1.0)


def with_outages(speedup: float, up: float) -> float:
    """Drafters present for a share `up` of the time, plain decoding in the rest."""
    return up * speedup + (1 - up)


@dataclass(frozen=True, slots=True)
class Scheme:
    """k_max: most drafted tokens verified in one step; the others as above."""

    a: float
    r: float
    latency: float = 0.0
    h: float = 0.0
    v: Curve = flat
    k_max: int = MOST_DRAFTED

    @property
    def branch(self) -> int:
        """Tokens after a correction drafted in advance."""
        return max(0, math.floor(self.r) - 1)


@dataclass(frozen=True, slots=True)
class _Step:
    """The run's tokens first, …, last (counted from 1) are decided at `end`, after `duration`."""

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
    """The steps of a run that began in this state, as far as it is likely to get."""
    now, committed = 0.0, 0
    while scheme.a**committed > NEGLIGIBLE:
        n_drafted = min(scheme.k_max, max(0, _arrived(scheme, state, now) - committed))
        duration = scheme.v(n_drafted)
        now += duration
        yield _Step(committed + 1, committed + n_drafted + 1, now, duration)
        committed += n_drafted + 1


def _arrived(scheme: Scheme, state: State, now: float) -> int:
    """How many drafted tokens of the run have arrived."""
    n = max(0, math.floor(scheme.r * (now - 2 * scheme.latency) + TIE * scheme.r))
    return n + scheme.branch if state is not None and now >= state - TIE else n


def _moves(scheme: Scheme, state: State, steps: list[_Step]) -> dict[State, float]:
    """Probabilities of the next run's state."""
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
    """The share of runs that begin in each state."""
    chain = np.array([[own.get(state, 0.0) for state in moves] for own in moves.values()])
    chain /= chain.sum(axis=1, keepdims=True)
    unchanged = chain.T - np.eye(len(moves))
    unchanged[-1] = 1.0  # one equation follows from the others; in its place, shares add up to 1
    sums = np.eye(len(moves))[-1]
    shares = cast(list[float], np.linalg.solve(unchanged, sums).tolist())
    return dict(zip(moves, shares, strict=True))
