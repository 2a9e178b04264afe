"""Which groups of sources guess: each is tried, and rests where the server is faster without it (ADR 8)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from server.engine.proposer import TimedStep
from server.speculation.gating.gate import potential
from server.speculation.gating.payoff import FEWER, Payoff
from server.speculation.sources.remote import DrafterRecord, RemoteDrafters

# Share of good guesses that are right: more is rare. Where a row adds a tenth of the first one's time,
# guesses may pay for up to 38 sessions then. Off by two, in what fails: 0.8, up to 22; 0.95, up to 54.
SURE_SHARE = 0.9
PAYS = 1.05  # times the rate of plain steps: less is lost to trials, messages and wrong guesses
NOT_TRIED = "a draft model in the lead has these cores until it was tried"
TRIED = "to see whether the lead is faster without it"
TOO_MANY = "no guess can pay for this number of sessions"
RENEWED = 64  # steps until what may pay is computed anew

LOOKUP = "lookup"


@dataclass(slots=True)
class _Group:
    """records: the drafters of a machine; none of lookups, of which n_heard counts how often they guessed.
    n_before: right guesses when a reply last began for which they count. crowds: it drafts on the lead's
    cores, beside a draft model in the lead."""

    records: Sequence[DrafterRecord] = ()
    payoff: Payoff = field(default_factory=Payoff)
    n_heard: int = 0
    n_before: int = 0
    crowds: bool = False

    def heard(self) -> int:
        return self.n_heard + sum(record.n_heard for record in self.records)

    def n_right(self) -> int:
        """Guesses that came true: who is never right has no text to blame."""
        return sum(record.counts["accepted"] for record in self.records)

    def works(self) -> bool:
        """Whether a step tells something of it: it guesses, or rests."""
        return not self.records or any(record.n_assigned or record.resting for record in self.records)


class Groups:
    """The drafters of the lead's machine, and lookups. One trial at a time. Drafters elsewhere and a draft
    model in the lead are not tried: what they take is charged to each session (balance.py)."""

    def __init__(self, remote: RemoteDrafters | None, *, model: bool = False, lookup: bool = False) -> None:
        """model: there is a draft model in the lead, which rests only where no guess can pay."""
        self._remote = remote
        self._model = model
        self._own = remote.own if remote else None
        self._lookup = _Group() if lookup else None
        self._hosts: dict[str, _Group] = {}  # by name, those that are tried
        self._away = list[str]()  # names of the others
        self._met: Mapping[str, Sequence[DrafterRecord]] = {}
        self._n_active = 0
        self._unsettled = self._left = 0  # steps until payoffs settle, and until _may_pay is computed anew
        self._may_pay = True
        self._tried: _Group | None = None
        self._known: Mapping[str, object] = {}  # verdicts before the restart, by name

    def memory(self) -> dict[str, object]:
        """What recall() takes after a restart."""
        now = {_name(host, group.records): group for host, group in self._hosts.items()}
        if self._lookup:
            now[LOOKUP] = self._lookup
        return dict(self._known) | {name: group.payoff.memory() for name, group in now.items()}

    def recall(self, memory: object) -> None:
        """Begin with what was found out before a restart."""
        self._known = cast(dict[str, object], memory) if isinstance(memory, dict) else {}
        if self._lookup:
            self._lookup.payoff.recall(self._known.get(LOOKUP))

    @property
    def crowded(self) -> bool:
        """Whether drafters share the lead's cores with its draft model."""
        return self._model and bool(self._hosts)

    @property
    def calm(self) -> bool:
        """Whether no drafter may work on the lead's cores."""
        return not any(group.payoff.on for group in self._hosts.values())

    @property
    def model_guesses(self) -> bool:
        """Whether the draft model in the lead may guess. False if there is none."""
        return self._model and self._may_pay

    @property
    def lookup_guesses(self) -> bool:
        """Whether lookups guess. False if there are none."""
        return self._lookup is not None and self._lookup.payoff.on

    def looked_up(self) -> None:
        """A lookup guessed."""
        if self._lookup:
            self._lookup.n_heard += 1

    @property
    def all_rest(self) -> bool:
        """Whether nobody guesses."""
        drafting = self._remote is not None and self._remote.drafting
        return not (drafting or self.model_guesses or self.lookup_guesses)

    def opened(self) -> None:
        """A reply begins, alone."""
        for group in self._all():
            if group.n_right() > group.n_before:
                group.n_before = group.n_right()
                group.payoff.new_reply()
        self._apply()

    def serve(self, n_active: int, curve: Callable[[], Sequence[float]]) -> None:
        """The next step serves this number of sessions. curve: tells the seconds of a decode by rows, none
        where guesses may pay in any case."""
        self._left -= 1
        if self._remote is not None and self._remote.hosts is not self._met:
            self._meet(self._remote.hosts)
        elif n_active != self._n_active:
            self._left, self._unsettled = 0, FEWER
        if self._left <= 0 or self._unsettled:
            self._serve(n_active, curve)

    def _serve(self, n_active: int, curve: Callable[[], Sequence[float]]) -> None:
        if self._left <= 0 and n_active:
            seconds = curve()
            self._may_pay = not any(seconds) or potential(seconds, n_active, SURE_SHARE) >= PAYS
            self._left = RENEWED
        self._n_active, self._unsettled = n_active, max(0, self._unsettled - 1)
        for group in self._all():
            group.payoff.serve(n_active, may_pay=self._may_pay)
        self._apply()

    def _all(self) -> list[_Group]:
        return [*self._hosts.values(), *([self._lookup] if self._lookup else [])]

    def stepped(self, step: TimedStep, work_s: float = math.inf) -> None:
        """Learn from a step; a group may rest from now on, or go on. work_s: what its rows and guesses take
        where nobody drafts on these cores. Beside a draft model in the lead, a drafter on its cores can only
        save that model's time: whether it does shows in work by time, from the start; tokens depend on the
        text."""
        if self._tried and not self._tried.payoff.is_tried:  # another number of sessions ended it
            self._tried = None
        for group in [self._tried] if self._tried else self._all():
            if group is not self._tried and not (group.works() or self._spares()):
                continue
            payoff, may_try = group.payoff, self._tried is None
            was_on = payoff.on
            if group.crowds and work_s < math.inf:
                payoff.step(step.n_sessions, work_s, step.step_s, may_try=may_try)
            else:
                payoff.step(step.n_sessions, step.n_tokens, step.step_s, heard=group.heard, may_try=may_try)
            if payoff.is_tried:
                self._tried = group
            elif group is self._tried:
                self._tried = None
                if payoff.on == was_on:  # it stays as it was tried
                    for other in self._all():
                        if other is not group:
                            other.payoff.forget()
            if payoff.on != was_on:
                self._apply()

    def _spares(self) -> bool:
        """Whether drafters rest in a session that they could have: such steps are part of what they bring."""
        return self._remote is not None and self._remote.n_spared > 0

    def _meet(self, hosts: Mapping[str, Sequence[DrafterRecord]]) -> None:
        """Begin anew with a machine where another drafter is: nothing is known of it."""
        before, self._met, self._hosts, self._away = self._hosts, hosts, {}, []
        crowds = self._model  # those on its cores have to show that they bring more
        for host, records in hosts.items():
            if all(map(self._is_away, records)):
                self._away.append(host)
                continue
            group = before.get(host)
            if group is None or not {r.join for r in records} <= {r.join for r in group.records}:
                begins = not crowds or (group is not None and group.payoff.on)
                group = _Group(payoff=Payoff(begins=begins), crowds=crowds)
                group.payoff.recall(self._known.get(_name(host, records)))
            group.records = records
            self._hosts[host] = group
        self._tried, self._left = None, 0

    def _is_away(self, record: DrafterRecord) -> bool:
        """Whether the drafter uses no core of the lead, by what it says."""
        return self._own is not None and record.presence.kernel != self._own.kernel

    def _apply(self) -> None:
        """Have the drafters of each machine rest or go on."""
        for host, group in self._hosts.items():
            why = TRIED if group.payoff.is_tried else ""
            if group.crowds and not group.payoff.is_known:
                why = NOT_TRIED
            self._rest(host, not group.payoff.on, why if self._may_pay else TOO_MANY)
        for host in self._away:
            self._rest(host, not self._may_pay, TOO_MANY)

    def _rest(self, host: str, resting: bool, why: str) -> None:
        if self._remote and any(record.resting != resting for record in self._met[host]):
            self._remote.rest(host, resting, why)


def _name(host: str, records: Sequence[DrafterRecord]) -> str:
    """Of the drafters of a machine, after a restart, too."""
    return f"{host}: {', '.join(sorted(record.presence.model for record in records))}"
