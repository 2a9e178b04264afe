"""Which groups of sources guess: each is tried, and rests where the server is faster without it (ADR 8)."""

from __future__ import annotations

from collections.abc import Sequence

from server.engine.proposer import TimedStep
from server.speculation.gating.payoff import Payoff
from server.speculation.sources.remote import DrafterRecord, RemoteDrafters

MODEL, LOOKUP = "draft model in the lead", "lookup"  # the groups that are not the drafters of a machine


class Groups:
    """The drafters of each machine, the draft model in the lead, and lookups. One trial at a time."""

    def __init__(self, remote: RemoteDrafters | None, *inside: str) -> None:
        """inside: groups in the lead, the one that costs most first."""
        self._remote = remote
        self._inside = {name: Payoff() for name in inside}
        self._hosts: dict[str, tuple[frozenset[int], Payoff]] = {}  # by name: joins, payoff
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

    def serve(self, n_active: int) -> None:
        """The next step serves this number of sessions."""
        for payoff in self._inside.values():
            payoff.serve(n_active)
        for host, (_, payoff) in self._hosts.items():
            payoff.serve(n_active)
            self._apply(host, payoff)

    def stepped(self, step: TimedStep) -> None:
        """Learn from a step; a group may rest from now on, or go on."""
        if self._remote is not None:
            for host, records in self._remote.hosts.items():
                self._step_host(host, records, step)
            if len(self._hosts) > len(self._remote.hosts):
                here = self._remote.hosts
                self._hosts = {host: known for host, known in self._hosts.items() if host in here}
        for name, payoff in self._inside.items():
            self._step(payoff, step, self.heard[name])

    def _step_host(self, host: str, records: Sequence[DrafterRecord], step: TimedStep) -> None:
        joins = frozenset([record.join for record in records])
        known, payoff = self._hosts.get(host) or (frozenset[int](), Payoff())
        if not joins <= known:  # another one is here: nothing is known of it
            self._hosts[host] = joins, (payoff := Payoff())
            payoff.serve(step.n_sessions)
        if any(record.n_assigned or record.resting for record in records):
            self._step(payoff, step, sum([record.n_heard for record in records]))
        self._apply(host, payoff)

    def _apply(self, host: str, payoff: Payoff) -> None:
        """Have the drafters of a machine rest or go on, as its payoff says."""
        if self._remote and payoff.on == any(r.resting for r in self._remote.hosts.get(host, ())):
            self._remote.rest(host, not payoff.on)

    def _step(self, payoff: Payoff, step: TimedStep, n_heard: int) -> None:
        may_try = not any(other.is_tried for other in self._inside.values())
        may_try = may_try and not any(other.is_tried for _, other in self._hosts.values())
        payoff.step(step.n_sessions, step.n_tokens, step.step_s, n_heard=n_heard, may_try=may_try)
