"""Which groups of sources guess: each rests where it costs the server more than it brings (ADR 8)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

from server.engine.proposer import CountsBySource, Proposal, TimedStep
from server.estimators import Median
from server.speculation.gating.credit import CREDIT, FEWER, Credits
from server.speculation.gating.gate import potential
from server.speculation.sources.drafter_record import N_ASSIGNED, DrafterRecord
from server.speculation.sources.remote import RemoteDrafters

# Share of good guesses that are right: more is rare. Where a row adds a tenth of the first one's time,
# guesses may pay for up to 38 sessions then. Off by two, in what fails: 0.8, up to 22; 0.95, up to 54.
SURE_SHARE = 0.9
PAYS = 1.05  # times the rate of plain steps: less is lost to messages and wrong guesses
# Steps until a drafter that joins on the lead's cores, or lookups, guess: what steps take without is seen in
# these. Half: too few are past the first ones, which are slow; twice: half of a short reply has no guesses.
FIRST = 16
# Seconds that it may cost to see a guess of a drafter that joins come true. Half: where a step takes 1 ms,
# 6 to 14 beside it, one of seven rests before a guess is right; twice: a bad one costs a second more.
INTRODUCED_S = 1.0
SETTLED = 4  # steps until a drafter that rests has ended its work
FASTER = "the lead is faster without it now"
WAITS = "until it is known what steps take without it"
JOINS = "another one joins"
AWAKE = "", ""  # nobody rests
TOO_DEAR = "no guess can pay: to check one takes too long now"
RENEWED = 64  # steps until what may pay is computed anew

LOOKUP = "lookup"
INSIDE = "in the lead"  # the draft model
# Tokens. Times the share of time that a draft model in the lead could save at best, that is what it may
# lose at first: 12 where it could double the speed. Half: two sessions of the bundled pair make 1.21 of
# plain steps instead of 1.25; twice: a bad one costs twice as much (benchmarks.inside --every-way
# --sessions 2).
STAKED = 25.0


class StepCharge(NamedTuple):
    """What groups cost a timed step, and those before it that were not timed, apart from rows, in tokens that
    plain steps would make in that time. told: messages, and choosing among guesses. crowded: how much longer
    its decode, and guesses of a draft model in the lead, took because drafters worked on the lead's cores.
    looked: searching texts. saved: what each verified guess of a drafter saved a draft model in the lead,
    None if there is no such model; most: what all of them saved at most, since that model would not have made
    more guesses. token_s: seconds in which plain steps make a token."""

    told: float = 0.0
    crowded: float = 0.0
    looked: float = 0.0
    saved: float | None = None
    most: float = 0.0
    token_s: float = 0.0


_Counted: TypeAlias = tuple[str, int, int, float]
"""Of a source's guesses: how many were verified, and right; tokens that plain steps would make in the time of
their rows."""


@dataclass(slots=True)
class _Machine:
    """The drafters of a machine, and their ids. credits: None if they use no core of the lead; works: whether
    one of them has a session. new: drafters that joined last and are being introduced; spent_s: seconds that
    this has cost; alone: the other drafters rest meanwhile. whys: why the other drafters rest, and why the
    new ones do, each empty if they do not; None if they have not been told yet."""

    records: Sequence[DrafterRecord]
    credits: Credits | None
    ids: frozenset[str] = frozenset()
    works: bool = False
    new: Sequence[DrafterRecord] = ()
    spent_s: float = 0.0
    alone: bool = False
    whys: tuple[str, str] | None = None

    def step(self, n_sessions: int, tally: Sequence[_Counted], charge: StepCharge) -> None:
        """A step in which they worked: what their guesses brought beyond rows and messages, and beyond
        what decodes took longer beside those that use the lead's cores."""
        n_verified, brought, ids, stake = 0, 0.0, self.ids, CREDIT
        for source, n, n_right, lost in tally:
            if source in ids:
                n_verified, brought = n_verified + n, brought + n_right - lost
        if charge.saved is not None:  # the draft model would have had these rows, too
            brought = min(n_verified * charge.saved, charge.most)
        net = brought - charge.told
        if self.credits:
            net -= charge.crowded
        if self.new and self._introduce(net * charge.token_s):
            stake = math.inf
        if self.credits:
            self.credits.step(n_sessions, net, stake)

    def _introduce(self, saved_s: float) -> bool:
        """A step in which these drafters saved saved_s seconds. Returns whether some are still introduced."""
        self.spent_s -= saved_s
        if self.spent_s >= INTRODUCED_S or all(record.counts["accepted"] for record in self.new):
            self.new = ()
        return bool(self.new)


class Groups:
    """The drafters of the lead's machine, the draft model in the lead, and lookups. Drafters elsewhere rest
    only where no guess can pay: what they take is charged to each session (balance.py)."""

    def __init__(
        self, remote: RemoteDrafters | None, td: Median | None = None, *, lookup: bool = False
    ) -> None:
        """td: seconds of a round of guesses of the draft model in the lead, None: there is none."""
        self._remote = remote
        self._td = td
        self._inside = Credits() if td is not None else None
        self._stake = STAKED  # of the draft model in the lead, in tokens
        self._lookup = Credits(FIRST) if lookup else None
        self._machines: dict[str, _Machine] = {}  # by name
        self._weighed: list[_Machine] = []  # those that use the lead's cores, or are introduced
        self.introduced: list[_Machine] = []  # with drafters that work in any case until a guess was right
        self._met: Mapping[str, Sequence[DrafterRecord]] = {}
        self._n_active = 0
        self._left = 0  # steps until _may_pay is computed anew
        self._may_pay = True
        self._barred = 0  # steps until drafters may go on, since no guess could pay
        self._n_calm = SETTLED  # steps since a drafter on the lead's cores had a session
        self._tally = list[_Counted]()  # since the latest step
        self._known: Mapping[str, object] = {}  # credits before the restart, by name

    def memory(self) -> dict[str, object]:
        """What recall() takes after a restart."""
        machines = self._machines.items()
        now = {_name(host, one.records): one.credits.memory() for host, one in machines if one.credits}
        own = {LOOKUP: self._lookup, INSIDE: self._inside}
        return dict(self._known) | now | {name: one.memory() for name, one in own.items() if one}

    def recall(self, memory: object) -> None:
        """Begin with what was found out before a restart."""
        self._known = cast(dict[str, object], memory) if isinstance(memory, dict) else {}
        if self._lookup:
            self._lookup.recall(self._known.get(LOOKUP))
        if self._inside:
            self._inside.recall(self._known.get(INSIDE))

    @property
    def calm(self) -> bool | None:
        """Whether no drafter works on the lead's cores in this step; None: one may be ending its work."""
        return None if 0 < self._n_calm <= SETTLED else self._n_calm > 0

    @property
    def model_guesses(self) -> bool:
        """Whether the draft model in the lead may guess. False if there is none."""
        return self._inside is not None and self._may_pay and self._inside.guesses

    def model_brought(self) -> float:
        """Tokens of each session that the draft model in the lead brought of late, beyond what it cost."""
        return max(0.0, self._inside.tokens) if self._inside else 0.0

    @property
    def lookup_guesses(self) -> bool:
        """Whether lookups guess. False if there are none. What steps take without them is seen while models
        rest, too."""
        lookup = self._lookup
        if lookup is None or not self._may_pay:
            return False
        return lookup.guesses or (lookup.looks and not self.models_rest)

    @property
    def models_rest(self) -> bool:
        """Whether no model guesses."""
        return not (self.model_guesses or (self._remote is not None and self._remote.drafting))

    @property
    def all_rest(self) -> bool:
        """Whether nobody guesses."""
        return self.models_rest and not self.lookup_guesses

    def serve(self, n_active: int, curve: Callable[[int], Sequence[float]], *, padded: bool = False) -> None:
        """The next step serves this number of sessions. curve: tells the seconds of a decode by rows, where
        a number of them are no guesses. padded: those are to one of a few widths, so that guesses may pay in
        any case."""
        self._left -= 1
        if self._remote is not None and self._remote.hosts is not self._met:
            self._meet(self._remote)
        if n_active != self._n_active:
            self._n_active, self._left = n_active, 0
        if self._left <= 0 and n_active:
            self._renew(curve(n_active), n_active, padded=padded)
        if self._barred:
            self._barred = self._barred - 1 if n_active else 0
        if not self._may_pay:
            self._barred = FEWER
        if self._lookup:
            self._lookup.serve(n_active)
        if self._inside:
            self._inside.serve(n_active)
        self._apply(n_active)

    def _renew(self, seconds: Sequence[float], n_active: int, *, padded: bool) -> None:
        """Compute anew which sources may pay. seconds: of a decode, by rows."""
        self._left, known = RENEWED, any(seconds)
        self._may_pay = padded or not known or potential(seconds, n_active, SURE_SHARE) >= PAYS
        if self._td is not None:
            best = potential(seconds, n_active, SURE_SHARE, self._td.value) if known else math.inf
            self._stake = STAKED * (1.0 - 1.0 / best)

    def passed(self) -> None:
        """A step without prompts in which nobody guesses."""
        if self._lookup:
            self._lookup.look()

    def count(self, tally: CountsBySource, lost: float) -> None:
        """By source: guesses that were verified, and how many were right. lost: tokens that plain steps would
        make in the time of each row."""
        for source, (n_verified, n_right) in tally.items():
            self._tally.append((source, n_verified, n_right, n_verified * lost))

    def drafted(self, n_sessions: int, net: float) -> None:
        """A step of n_sessions sessions in which the draft model in the lead guessed: tokens that it brought
        them beyond those that plain steps make in the time that took."""
        if self._inside:
            self._inside.step(n_sessions, net, self._stake)

    def stepped(self, step: TimedStep, charge: StepCharge) -> None:
        """Learn from a step; a group may rest from now on, or go on."""
        tally, self._tally = self._tally, []
        for machine in self._weighed:
            if machine.works:  # else all its sessions rest by their own balance
                machine.step(step.n_sessions, tally, charge)
            elif machine.credits:
                machine.credits.look()
        if self.introduced:
            self.introduced = [machine for machine in self.introduced if machine.new]
        if self._lookup:
            found = [n_right - lost for source, _, n_right, lost in tally if source == LOOKUP]
            self._lookup.step(step.n_sessions, sum(found) - charge.looked)

    def introduce(self, offers: Sequence[Proposal], counts: list[int]) -> None:
        """Raise one of counts, how many guesses of each offer are verified, so that a guess of a drafter
        that is being introduced is among them, whether it pays or not."""
        new = {record.presence.id for machine in self.introduced for record in machine.new}
        for i, offer in enumerate(offers):
            first = next((at for at, source in enumerate(offer.sources) if source in new), None)
            if first is not None:
                counts[i] = max(counts[i], first + 1)
                return

    def _meet(self, remote: RemoteDrafters) -> None:
        """Begin anew with a machine where another drafter is, if it rests: nothing is known of that one."""
        before, self._met, self._machines = self._machines, remote.hosts, {}
        known = {record.join for machine in before.values() for record in machine.records}
        joins = any(record.join in known for records in remote.hosts.values() for record in records)
        for host, records in remote.hosts.items():
            machine = before.get(host)
            rests = machine is not None and machine.whys not in (None, AWAKE)
            new = [record for record in records if record.join not in known]
            if machine is None or (new and not (machine.credits and machine.credits.guesses)):
                credits = Credits(FIRST) if any(map(remote.is_beside, records)) else None
                if credits:
                    credits.recall(self._known.get(_name(host, records)))
                machine = _Machine(records, credits)
            machine.records, machine.ids = records, frozenset(r.presence.id for r in records)
            machine.new = [record for record in machine.new if record in records]  # but those that left
            if new and (joins or not machine.credits):
                machine.new, machine.spent_s, machine.alone = new, 0.0, rests
            machine.whys = None
            self._machines[host] = machine
        machines = self._machines.values()
        self.introduced = [machine for machine in machines if machine.new]
        self._weighed = [machine for machine in machines if machine.new or machine.credits]

    def _apply(self, n_active: int) -> None:
        """Have the drafters of each machine rest or go on."""
        for machine in self._machines.values():
            credits, why = machine.credits, TOO_DEAR if self._barred else ""
            if credits:
                credits.serve(n_active)
                if not (why or credits.guesses):
                    why = WAITS if credits.looks else FASTER
            whys = (why, why) if why else AWAKE
            if machine.new and why != WAITS:
                whys = why or (JOINS if machine.alone else ""), ""
            if whys != machine.whys and self._remote:
                _tell(self._remote, machine, whys)
        self._n_calm += 1
        for machine in self._weighed:
            machine.works = any(map(N_ASSIGNED, machine.records))
            if machine.works and machine.credits:
                self._n_calm = 0


def _tell(remote: RemoteDrafters, machine: _Machine, whys: tuple[str, str]) -> None:
    """Have the drafters of a machine rest, for these reasons, or go on."""
    quietly, new = not {WAITS, JOINS}.isdisjoint(whys + (machine.whys or AWAKE)), machine.new
    remote.rest([record for record in machine.records if record not in new], whys[0], quietly=quietly)
    remote.rest(new, whys[1], quietly=quietly)
    machine.whys = whys


def _name(host: str, records: Sequence[DrafterRecord]) -> str:
    """Of the drafters of a machine, after a restart, too."""
    return f"{host}: {', '.join(sorted(record.presence.model for record in records))}"
