"""Which groups of sources guess: each is tried, and rests where the server is faster without it (ADR 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.engine.proposer import TimedStep
from server.speculation.gating.gate import potential
from server.speculation.gating.payoff import Payoff
from server.speculation.sources.remote import DrafterRecord, RemoteDrafters

# Share of good guesses that are right: more is rare. Where a row adds a tenth of the first one's time,
# guesses may pay for up to 38 sessions then. Off by two, in what fails: 0.8, up to 22; 0.95, up to 54.
SURE_SHARE = 0.9
PAYS = 1.05  # times the rate of plain steps: less is lost to trials, messages and wrong guesses
RENEWED = 64  # steps until what may pay is computed anew

MODEL, LOOKUP = "draft model in the lead", "lookup"  # the groups that are not the drafters of a machine


class Groups:
    """The drafters of each machine, the draft model in the lead, and lookups. One trial at a time."""

    def __init__(self, remote: RemoteDrafters | None, *inside: str) -> None:
        """inside: groups in the lead, the one that costs most first."""
        self._remote = remote
        self._inside = {name: Payoff() for name in inside}
        self._hosts: dict[str, tuple[frozenset[int], Payoff]] = {}  # by name: joins, payoff
        self._known: dict[int, tuple[int, bool]] = {}  # by sessions: when computed, _may_pay()
        self._n_served = 0
        self._met: Mapping[str, Sequence[DrafterRecord]] = {}
        self.heard = dict.fromkeys(inside, 0)  # times that a group in the lead guessed

    def guesses(self, name: str) -> bool:
        """Whether a group in the lead guesses. False if there is none of this name."""
        return name in self._inside and self._inside[name].on

    @property
    def all_rest(self) -> bool:
        """Whether there are groups and none guesses."""
        if any(payoff.on for payoff in self._inside.values()):
            return False
        if self._remote is None:
            return bool(self._inside)
        return not self._remote.drafting and bool(self._inside or self._hosts)

    def serve(self, n_active: int, curve: Sequence[float] | None) -> None:
        """The next step serves this number of sessions. curve: seconds of a decode by rows; None: guesses may
        pay in any case."""
        if self._remote is not None and self._remote.hosts is not self._met:
            self._met = self._remote.hosts
            self._meet(self._met)
        may_pay = curve is None or self._may_pay(n_active, curve)
        for payoff in self._inside.values():
            payoff.serve(n_active, may_pay=may_pay)
        for host, (_, payoff) in self._hosts.items():
            payoff.serve(n_active, may_pay=may_pay)
            self._apply(host, payoff)

    def _may_pay(self, n_active: int, curve: Sequence[float]) -> bool:
        """Whether good guesses that cost nothing could pay. Computed anew now and then only: that takes about
        as long as a step's other decisions."""
        self._n_served += 1
        at, may_pay = self._known.get(n_active, (-RENEWED, True))
        if self._n_served - at >= RENEWED:
            may_pay = not any(curve) or potential(curve, n_active, SURE_SHARE) >= PAYS
            self._known[n_active] = self._n_served, may_pay
        return may_pay

    def stepped(self, step: TimedStep) -> None:
        """Learn from a step; a group may rest from now on, or go on."""
        groups = self._groups()
        tried = next((group for group in groups if group[0].is_tried), None)
        for payoff, n_heard in [tried] if tried else groups:
            was_on, was_tried = payoff.on, payoff.is_tried
            may_try = not any(other.is_tried for other, _ in groups)
            payoff.step(step.n_sessions, step.n_tokens, step.step_s, n_heard=n_heard, may_try=may_try)
            if was_tried and not payoff.is_tried and payoff.on == was_on:  # it stays as it was tried
                for other, _ in groups:
                    if other is not payoff:
                        other.forget()
        for host, (_, payoff) in self._hosts.items():
            self._apply(host, payoff)

    def _groups(self) -> list[tuple[Payoff, int]]:
        """Those that a step tells something of: they work, or rest; and how often each was heard."""
        found: list[tuple[Payoff, int]] = []
        for host, (_, payoff) in self._hosts.items():
            records = self._met[host]
            if any(record.n_assigned or record.resting for record in records):
                found.append((payoff, sum([record.n_heard for record in records])))
        return found + [(payoff, self.heard[name]) for name, payoff in self._inside.items()]

    def _meet(self, hosts: Mapping[str, Sequence[DrafterRecord]]) -> None:
        """Begin anew with a machine where another drafter is: nothing is known of it."""
        before, self._hosts = self._hosts, {}
        for host, records in hosts.items():
            joins = frozenset([record.join for record in records])
            known, payoff = before.get(host) or (frozenset[int](), Payoff())
            self._hosts[host] = joins, payoff if joins <= known else Payoff()

    def _apply(self, host: str, payoff: Payoff) -> None:
        """Have the drafters of a machine rest or go on, as its payoff says."""
        if self._remote and payoff.on == any(r.resting for r in self._remote.hosts.get(host, ())):
            self._remote.rest(host, not payoff.on)
