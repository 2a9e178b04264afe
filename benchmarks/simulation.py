"""Lead, drafters and latency, step by step of the lead. Pure: `benchmarks.sweep --simulated` runs it.

Shares no code with the server: it is a second opinion beside the real engine under a virtual clock
(`benchmarks.sweep --virtual`), and also takes several drafters, and drafters that die and come back.

Text is positions only. Each drafter's path is right from its start up to its next mistake; what it drafts
beyond is worthless until it hears of the commit that contradicts it. At a mistake with a correction ready,
the right token and r - 1 more arrive together with the wrong one. Nothing else is random, so what a drafter
has sent at any time follows from when it heard of each commit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from benchmarks.formulas import MOST_DRAFTED, TIE, Curve, flat

BLOCK = 200  # run lengths whose shares are exact
FEW = 20  # choices whose shares are exact

Merge: TypeAlias = Literal["longest", "all"]


# -- chance with little noise: values come as often as they should, only their order is drawn. A few hundred
# independent runs leave an error of some per cent in a speed-up; shuffled quantiles leave a tenth of that.


def gaps(a: float, rng: random.Random) -> Iterator[int]:
    """Endless: how many guesses are right before the next wrong one, each being right with probability a."""
    while True:
        block = [math.floor(math.log((i + 0.5) / BLOCK) / math.log(a)) for i in range(BLOCK)]
        # Quantiles at the middle of each share miss a little of the long tail; one of them makes up for it
        block[0] += round(BLOCK * a / (1 - a)) - sum(block)
        rng.shuffle(block)
        yield from block


def choices(p: float, rng: random.Random) -> Iterator[bool]:
    """Endless: True with probability p."""
    owed = 0.0
    while True:
        owed += p * FEW
        n = math.floor(owed + 1e-9)
        owed -= n
        block = [True] * n + [False] * (FEW - n)
        rng.shuffle(block)
        yield from block


# -- the simulator ----------------------------------------


@dataclass(frozen=True, slots=True)
class DrafterSetup:
    """a, r, h and latency as in formulas.py, times in tt. outages: (from, until), in order, when it is dead;
    it hears of the session anew one latency after it is back."""

    a: float
    r: float
    h: float = 0.0
    latency: float = 0.0
    outages: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class LeadSetup:
    """v and k_max as in formulas.py. merge: of several drafters, verify the longest path, or all paths."""

    v: Curve = flat
    k_max: int = MOST_DRAFTED
    merge: Merge = "longest"


@dataclass(frozen=True, slots=True)
class Result:
    """speedup: tokens per tt. n_verified: drafted tokens that steps verified."""

    speedup: float
    n_tokens: int
    n_steps: int
    n_verified: int


@dataclass(slots=True)
class _Path:
    """Guesses for the positions from `start` on, wrong at `mistake`. The first n_ready arrive at ready_at;
    others are drafted from `began` on, until `stops`."""

    start: int
    mistake: int
    corrected: bool
    began: float
    n_ready: int = 0
    ready_at: float = 0.0
    stops: float = math.inf


class _Drafter:
    """A drafter, and what the lead has of it."""

    def __init__(self, setup: DrafterSetup, rng: random.Random) -> None:
        self._setup = setup
        self._gaps, self._corrected = gaps(setup.a, rng), choices(setup.h, rng)
        self._outages = list(setup.outages)
        self.path = self._begin(0, setup.latency)

    def _begin(self, start: int, at: float) -> _Path:
        return _Path(start, start + next(self._gaps), next(self._corrected), at)

    def _drafted(self, at: float) -> int:
        """Tokens of the path that the drafter has made by then."""
        seconds = min(at, self.path.stops) - self.path.began
        return self.path.n_ready + max(0, math.floor(self._setup.r * (seconds + TIE)))

    def n_ahead(self, committed: int, now: float) -> int:
        """Guesses at the lead for positions from `committed` on."""
        drafted = self._drafted(now - self._setup.latency)
        if drafted == self.path.n_ready and now < self.path.ready_at - TIE:
            drafted = 0
        return max(0, self.path.start + drafted - committed)

    def hear(self, committed: int, now: float) -> None:
        """The lead has just committed up to there; the drafter hears of it one latency later."""
        at = now + self._setup.latency
        if self.path.stops < at:  # dead: a commit on its way is lost
            return
        while self.path.mistake < committed and self.path.corrected:
            self._switch(at)
        if self.path.mistake < committed or self.path.start + self._drafted(at) < committed:
            self.path = self._begin(committed, at)

    def _switch(self, at: float) -> None:
        """To the correction of the path's mistake, which came with the wrong guess, if that was made."""
        old, setup = self.path, self._setup
        n = old.mistake - old.start + 1  # guesses up to and with the wrong one
        sent = old.ready_at if n <= old.n_ready else old.began + (n - old.n_ready) / setup.r + setup.latency
        if n > old.n_ready and sent > at + setup.latency + TIE:
            sent = math.inf  # it comes with the first guess after it
        self.path = self._begin(old.mistake + 1, at)
        self.path.n_ready, self.path.ready_at = max(0, int(setup.r) - 1), sent

    def live(self, committed: int, now: float) -> None:
        """Die and return as the outages say, by now."""
        if self._outages and self._outages[0][0] <= now:
            self.path.stops, end = self._outages[0]
            if end + self._setup.latency <= now:
                self._outages.pop(0)
                self.path = self._begin(committed, end + self._setup.latency)


def simulate(lead: LeadSetup, drafters: Sequence[DrafterSetup], n_tokens: int, seed: int = 0) -> Result:
    """Decode n_tokens or a few more; the same result for the same seed."""
    crew = [_Drafter(setup, random.Random(seed + i)) for i, setup in enumerate(drafters)]
    now, committed, n_steps, n_verified = 0.0, 0, 0, 0
    while committed < n_tokens:
        offers = [(drafter.n_ahead(committed, now), drafter.path.mistake) for drafter in crew]
        offers = sorted((offer for offer in offers if offer[0] > 0), key=lambda offer: -offer[0])
        room, best = lead.k_max, committed + 1
        for n_ahead, mistake in offers if lead.merge == "all" else offers[:1]:
            n = min(n_ahead, room)
            room -= n
            best = max(best, min(committed + n, mistake) + 1)
        now += lead.v(lead.k_max - room)
        for drafter in crew:
            drafter.live(committed, now)
        committed = best
        n_steps += 1
        n_verified += lead.k_max - room
        for drafter in crew:
            drafter.hear(committed, now)
    return Result(committed / now, committed, n_steps, n_verified)
