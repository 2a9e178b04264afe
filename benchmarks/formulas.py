"""How much faster than plain decoding drafts can make a lead: closed formulas. Pure.

Symbols. a: probability that a drafted token is the target's. r = tt/td: drafted tokens per one-token step of
the lead, whose time tt is the unit of all times here. k: drafted tokens verified in one step. v(k): time of
such a step; v(0) = 1. latency: one way between lead and drafter. h: share of mismatches for which a
correction with r - 1 tokens after it was drafted in advance and lies ready. Results are speed-ups over plain
decoding.

A run is what is committed after one mismatch up to and with the next: 1/(1-a) tokens on average. All of the
asynchronous formulas divide that by the expected time of a run:

- A run begins without drafts, so its first step is plain: 1. Meanwhile the drafter drafts r tokens. The run
  goes on if the first of them is right: a. Each later step verifies r - 1 tokens and draws one more, while as
  many are drafted; the run outlives it if all r are right: a^r. Hence 1 + a + a a^r + … = 1 + a/(1-a^r).
- With a correction ready there is no plain step: 1 + a^r + … = 1/(1-a^r).
- Waiting for w drafts takes w/r, then the first step decides w + 1 tokens: w/r + 1 + a^(w+1)/(1-a^r). That
  is least where its derivative 1/r + ln(a) a^(w+1)/(1-a^r) is zero.

They hold for v = 1, no latency and r a whole number; `renewal.py` has no such conditions.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Curve: TypeAlias = Callable[[int], float]
"""v(k): the time of a step that verifies k drafted tokens over that of a plain one; not decreasing."""

MOST_DRAFTED = 512  # where searches over k end


def flat(k: int) -> float:
    """Verifying costs nothing: a target bound by memory bandwidth, as far as that goes."""
    return 1.0


def staircase(times: Mapping[int, float]) -> Curve:
    """The curve through measured times (of any unit) by drafted tokens k; times[0] must be there. Between two
    measured widths it is that of the larger one; beyond the last it grows by the last one's time per row."""
    ks = sorted(times)
    plain, last = times[0], ks[-1]

    def v(k: int) -> float:
        for known in ks:
            if k <= known:
                return max(times[smaller] for smaller in ks if smaller <= known) / plain
        return v(last) * (k + 1) / (last + 1)

    return v


def run_length(a: float) -> float:
    """Tokens from one mismatch to the next: those accepted, and the correction."""
    return 1 / (1 - a)


def per_step(a: float, k: int) -> float:
    """Tokens committed by a step that verifies k drafted ones in a chain: 1 + a + … + a^k."""
    return (1 - a ** (k + 1)) / (1 - a)


def sync(a: float, r: float, v: Curve = flat, latency: float = 0.0) -> float:
    """Drafting and verifying in turn, with the best number of drafted tokens (none included)."""
    most = range(_useful(a) + 1)
    return max(per_step(a, k) / (v(k) + (k / r + 2 * latency if k else 0.0)) for k in most)


def asynchronous(a: float, r: float, h: float = 0.0) -> float:
    """Drafting while the lead decodes, which never waits."""
    ready = 1 / (1 - a**r)
    return run_length(a) / ((1 - h) * (1 + a * ready) + h * ready)


def waiting(a: float, r: float, w: float, latency: float = 0.0) -> float:
    """As `asynchronous` with h = 0, but after a mismatch the lead waits until w drafts have arrived. Latency
    lengthens the wait only: what it costs later in the run is neglected."""
    return run_length(a) / (w / r + 2 * latency + 1 + a ** (w + 1) / (1 - a**r))


def best_wait(a: float, r: float) -> float:
    """How many drafts to wait for after a mismatch; 0 where waiting does not pay."""
    rate = math.log(1 / a)
    return max(0.0, math.log((1 - a**r) / (r * rate)) / -rate - 1)


def limit(a: float, r: float, v: Curve = flat) -> float:
    """What no chain of drafts can exceed: every step verifies the best number of tokens that the drafter can
    have drafted in its time, right from the beginning."""
    fits = [k for k in range(_useful(a) + 1) if k + 1 <= r * v(k)]
    return max((per_step(a, k) / v(k) for k in fits), default=1.0)


def tree_limit(ranks: Sequence[float], v: Curve = flat, n_max: int = MOST_DRAFTED) -> float:
    """What no tree of at most n_max drafted tokens can exceed. ranks[i]: probability that the drafter's
    (i+1)-th likeliest token is the target's, the same everywhere. A node is accepted with the product along
    its path, so the best tree of n nodes has the n largest products: no child comes before its parent."""
    best = expected = 1.0
    frontier = [-p for p in ranks]
    heapq.heapify(frontier)
    for n in range(1, n_max + 1):
        f = -heapq.heappop(frontier)
        expected += f
        best = max(best, expected / v(n))
        if f < 1e-6:
            break
        for p in ranks:
            heapq.heappush(frontier, -f * p)
    return best


def with_outages(speedup: float, up: float) -> float:
    """Drafters present for a share `up` of the time, plain decoding in the rest."""
    return up * speedup + (1 - up)


def _useful(a: float) -> int:
    """Beyond so many drafted tokens another one adds nothing worth counting."""
    return min(MOST_DRAFTED, math.ceil(math.log(1e-6) / math.log(a)))
