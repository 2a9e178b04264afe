"""Lead, drafters and network as discrete events. No clock, no I/O: `simulate.py` is the program.

Shares no code with the server: what it says about the asynchronous scheme is a second opinion beside the real
engine under a virtual clock (`python -m benchmarks.sweep --virtual`). It also takes what the formulas do not
know: several drafters, drafters that die and come back, a lead that waits.

Text is positions only. Each drafter's path is right from its start up to its next mistake; what it drafts
beyond is worthless until it hears of the commit that contradicts it. At a mistake with a correction ready,
the right token and r - 1 more lie in the lead's tree as soon as the wrong one does.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from benchmarks.formulas import MOST_DRAFTED, Curve, flat
from benchmarks.strata import choices, gaps

TIE = 1e-9  # what happens this little after a step began is known to it

Merge: TypeAlias = Literal["longest", "all"]


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
    """v and k_max as in formulas.py. wait: drafts to wait for after a mismatch that leaves none. merge: of
    several drafters, verify the longest path, or all paths as a tree."""

    v: Curve = flat
    k_max: int = MOST_DRAFTED
    wait: int = 0
    merge: Merge = "longest"


@dataclass(slots=True)
class _Path:
    """A drafter's guesses for the positions from `start` on, wrong at `mistake`. Of `n_drafted`, `n_arrived`
    are at the lead, the first n_ready of which came at once, as a correction (n_arrived = 0: not yet)."""

    start: int
    mistake: int
    corrected: bool
    n_ready: int = 0
    n_drafted: int = 0
    n_arrived: int = 0
    next: _Path | None = None


class _Drafter:
    """One drafter's process and what the lead has of it (`at_lead`)."""

    def __init__(self, setup: DrafterSetup, rng: random.Random) -> None:
        self.setup = setup
        self.at_lead: _Path | None = None
        self.path: _Path | None = None  # None: dead
        self._gaps = gaps(setup.a, rng)
        self._corrected = choices(setup.h, rng)

    def begin(self, start: int, n_ready: int = 0) -> _Path:
        """A path from there, the first n_ready tokens of which are drafted already."""
        mistake = start + next(self._gaps)
        return _Path(start, mistake, next(self._corrected), n_ready, n_drafted=n_ready)

    def correction(self, path: _Path) -> _Path:
        """What follows the corrected mistake of a path: one path, whoever asks first."""
        if path.next is None:
            path.next = self.begin(path.mistake + 1, max(0, int(self.setup.r) - 1))
        return path.next


@dataclass(frozen=True, slots=True)
class Result:
    """speedup: tokens per tt. n_verified: drafted tokens that steps verified."""

    speedup: float
    n_tokens: int
    n_steps: int
    n_verified: int


@dataclass(slots=True)
class Simulation:
    """One text. Times in tt."""

    lead: LeadSetup
    setups: Sequence[DrafterSetup]
    seed: int = 0
    now: float = 0.0
    committed: int = 0
    n_steps: int = 0
    n_verified: int = 0
    _drafters: list[_Drafter] = field(default_factory=list[_Drafter])
    _events: list[tuple[float, int, Callable[[], None]]] = field(
        default_factory=list[tuple[float, int, Callable[[], None]]]
    )
    _order: Iterator[int] = field(default_factory=itertools.count)

    def run(self, n_tokens: int) -> Result:
        """Decode so many tokens or a few more."""
        for i, setup in enumerate(self.setups):
            drafter = _Drafter(setup, random.Random(self.seed + i))
            self._drafters.append(drafter)
            self._after(0.0, lambda d=drafter: self._hear(d, 0))
            for begin, end in setup.outages:
                self._after(begin, lambda d=drafter: self._die(d))
                self._after(end + setup.latency, lambda d=drafter: self._hear(d, self.committed))
        self._pass(0.0)
        missed = False
        while self.committed < n_tokens:
            if missed and self.lead.wait:
                self._wait()
            missed = self._step()
        return Result(self.committed / self.now, self.committed, self.n_steps, self.n_verified)

    # -- time

    def _after(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), action))

    def _pass(self, duration: float) -> None:
        end = self.now + duration
        while self._events and self._events[0][0] <= end + TIE:
            at, _, action = heapq.heappop(self._events)
            self.now = max(self.now, at)
            action()
        self.now = end

    # -- the lead

    def _step(self) -> bool:
        """One step of the lead. Returns whether it ended in a mismatch that leaves no drafts."""
        before = self.committed
        alive = [(self._n_ahead(drafter), drafter) for drafter in self._drafters]
        proposed = sorted((pair for pair in alive if pair[0] > 0), key=lambda pair: -pair[0])
        if self.lead.merge == "longest":
            proposed = proposed[:1]
        room, best = self.lead.k_max, before + 1
        for n_ahead, drafter in proposed:
            n = min(n_ahead, room)
            room -= n
            assert drafter.at_lead is not None
            best = max(best, min(before + n, drafter.at_lead.mistake) + 1)
        rows = self.lead.k_max - room
        self._pass(self.lead.v(rows))
        self.n_steps += 1
        self.n_verified += rows
        self.committed = best
        for drafter in self._drafters:
            self._prune(drafter)
            self._after(drafter.setup.latency, lambda d=drafter, c=best: self._hear(d, c))
        self._pass(0.0)
        return bool(proposed) and not any(drafter.at_lead for drafter in self._drafters)

    def _wait(self) -> None:
        """Until enough drafts are there, or should be by what the fastest drafter promises."""
        soonest = min(self.lead.wait / d.setup.r + 2 * d.setup.latency for d in self._drafters)
        deadline = self.now + soonest
        while self._events and self._events[0][0] <= deadline + TIE:
            if max(self._n_ahead(drafter) for drafter in self._drafters) >= self.lead.wait:
                return
            self._pass(max(0.0, self._events[0][0] - self.now))
        self.now = max(self.now, deadline)

    def _n_ahead(self, drafter: _Drafter) -> int:
        """How many of its guesses follow what is committed."""
        path = drafter.at_lead
        return max(0, path.start + path.n_arrived - self.committed) if path else 0

    def _prune(self, drafter: _Drafter) -> None:
        """Leave a path that the commit contradicts, for its correction if there is one."""
        path = drafter.at_lead
        while path and path.mistake < self.committed:
            if not path.corrected:
                path = None
                break
            following = drafter.correction(path)
            if path.start + path.n_arrived > path.mistake:
                following.n_arrived = max(following.n_arrived, following.n_ready)
            path = following
        drafter.at_lead = path

    def _arrive(self, drafter: _Drafter, path: _Path, n: int) -> None:
        """The n-th token of a path, and with a wrong one its correction."""
        path.n_arrived = max(path.n_arrived, n)
        known: _Path | None = path
        while known and known.corrected and known.start + known.n_arrived > known.mistake:
            following = known.next
            if following:
                following.n_arrived = max(following.n_arrived, following.n_ready)
            known = following
        if drafter.at_lead is None or drafter.at_lead.start < path.start:
            drafter.at_lead = path
            self._prune(drafter)

    # -- the drafters

    def _hear(self, drafter: _Drafter, committed: int) -> None:
        """A drafter learns what is committed; a dead one only by the Open after its return."""
        path = drafter.path
        if path is None:
            if not self._is_dead(drafter):
                self._draft_on(drafter, drafter.begin(committed))
            return
        while path.mistake < committed and path.corrected:
            path = drafter.correction(path)
        if path.mistake < committed or path.start + path.n_drafted < committed:
            path = drafter.begin(committed)
        if path is not drafter.path:
            self._draft_on(drafter, path)

    def _draft_on(self, drafter: _Drafter, path: _Path) -> None:
        drafter.path = path
        self._after(1 / drafter.setup.r, lambda: self._drafted(drafter, path))

    def _drafted(self, drafter: _Drafter, path: _Path) -> None:
        if drafter.path is path:
            path.n_drafted += 1
            n = path.n_drafted
            self._after(drafter.setup.latency, lambda: self._arrive(drafter, path, n))
            self._draft_on(drafter, path)

    def _die(self, drafter: _Drafter) -> None:
        drafter.path = None

    def _is_dead(self, drafter: _Drafter) -> bool:
        """A commit on its way to a dead drafter is lost."""
        latency = drafter.setup.latency
        return any(begin <= self.now < end + latency - TIE for begin, end in drafter.setup.outages)


def simulate(lead: LeadSetup, drafters: Sequence[DrafterSetup], n_tokens: int, seed: int = 0) -> Result:
    """Pure: the same result for the same seed."""
    return Simulation(lead, drafters, seed).run(n_tokens)
