"""How much faster than plain decoding drafts can make a lead. Pure.

Symbols. a: probability that a drafted token is the target's. r = tt/td: drafted tokens per one-token step of
the lead, whose time tt is the unit of all times here. k: drafted tokens verified in one step. v(k): time of
such a step; v(0) = 1. latency: one way between lead and drafter. Results are speed-ups over plain decoding.

A run is what is committed after one mismatch up to and with the next: 1/(1-a) tokens on average. Between two
mismatches only the place of the next one is random: the lead's steps, and what has arrived before each,
follow from how the run began. So the expected time of a run is a sum over its steps, each weighted with the
probability a^C that the run gets there, C being its tokens committed before.

Times are counted from the mismatch that began the run. The drafter hears of it after one latency, its n-th
token arrives at n/r + 2 latency, and until then steps are plain. Assumed beyond that: a drafter that neither
pauses nor learns of anything late, and guesses independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Curve: TypeAlias = Callable[[int], float]
"""v(k): the time of a step that verifies k drafted tokens over that of a plain one; not decreasing."""

MOST_DRAFTED = 512  # where searches over k end: 0.95^512 is 4e-12
TIE = 1e-9  # a draft that arrives this little after a step began belongs to the step
NEGLIGIBLE = 1e-9  # probability of getting so far in a run


def flat(k: int) -> float:
    """Return the cost of verifying on a target bound by memory bandwidth: nothing."""
    return 1.0


def staircase(times: Mapping[int, float]) -> Curve:
    """Return the curve through measured times by drafted tokens k; times[0] must be there.

    Between two measured widths it is that of the larger one; beyond the last it grows by the last one's time
    per row.
    """
    ks = sorted(times)
    plain, last = times[0], ks[-1]

    def v(k: int) -> float:
        for known in ks:
            if k <= known:
                return max(times[smaller] for smaller in ks if smaller <= known) / plain
        return v(last) * (k + 1) / (last + 1)

    return v


def run_length(a: float) -> float:
    """Return the mean tokens from one mismatch to the next, the target's own token included."""
    return 1 / (1 - a)


def per_step(a: float, k: int) -> float:
    """Return the mean tokens committed by a step that verifies k drafted ones in a chain: 1 + a + … + a^k."""
    return (1 - a ** (k + 1)) / (1 - a)


def limit(a: float, r: float, v: Curve = flat) -> float:
    """Return the speed-up that no chain of drafts can exceed.

    Every step verifies the best number of tokens that the drafter can have drafted in its time.
    """
    useful = min(MOST_DRAFTED, math.ceil(math.log(1e-6) / math.log(a)))
    fits = [k for k in range(useful + 1) if k + 1 <= r * v(k)]
    return max((per_step(a, k) / v(k) for k in fits), default=1.0)


def with_outages(speedup: float, up: float) -> float:
    """Return the speed-up with drafters present for a share `up` of the time, else plain decoding."""
    return up * speedup + (1 - up)


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to draft.

    k_max: most drafted tokens verified in one step; the others as above.
    """

    a: float
    r: float
    latency: float = 0.0
    v: Curve = flat
    k_max: int = MOST_DRAFTED

    def arrived(self, now: float) -> int:
        """Return how many drafted tokens of the run have arrived."""
        return max(0, math.floor(self.r * (now - 2 * self.latency) + TIE * self.r))


def speedup(scheme: Scheme) -> float:
    """Return tokens per tt."""
    return run_length(scheme.a) / sum(share * duration for share, duration in _steps(scheme))


def _steps(scheme: Scheme) -> Iterator[tuple[float, float]]:
    """Yield the steps of a run: the share of runs that get there, and how long it takes."""
    now, committed = 0.0, 0
    while (share := scheme.a**committed) > NEGLIGIBLE:
        n_drafted = min(scheme.k_max, max(0, scheme.arrived(now) - committed))
        yield share, scheme.v(n_drafted)
        now += scheme.v(n_drafted)
        committed += n_drafted + 1
