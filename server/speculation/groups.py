"""Which groups of sources guess: each is tried, and rests where the server is faster without it (ADR 8)."""

from __future__ import annotations

from server.engine.proposer import TimedStep
from server.speculation.gating.payoff import Payoff
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.sources.synchronous import Synchronous


class Groups:
    """The drafters of each machine, and the draft model in the lead. One trial at a time."""

    def __init__(self, remote: RemoteDrafters | None, inline: Synchronous | None) -> None:
        self._remote = remote
        self._inline = inline
        self._inline_payoff = Payoff()
        self._hosts: dict[str, tuple[frozenset[int], Payoff]] = {}  # by name: joins, payoff

    @property
    def inline_guesses(self) -> bool:
        return self._inline is not None and self._inline_payoff.on

    @property
    def nobody_guesses(self) -> bool:
        """Whether every group rests, and there is one."""
        if self._remote is not None and (self._remote.drafting or not (self._hosts or self._inline)):
            return False
        return not self.inline_guesses

    def stepped(self, step: TimedStep) -> None:
        """Learn from a step; a group may rest from now on, or go on."""
        if self._inline is not None:
            self._step(self._inline_payoff, step, self._inline.n_heard)
        if self._remote is not None:
            self._step_hosts(self._remote, step)

    def _step_hosts(self, remote: RemoteDrafters, step: TimedStep) -> None:
        for host, records in remote.hosts.items():
            joins, (known, payoff) = frozenset(r.join for r in records), self._hosts.get(host, NEW)
            if not joins <= known:  # another one is here: nothing is known of it
                self._hosts[host] = joins, (payoff := Payoff())
            if any(record.n_assigned or record.resting for record in records):
                self._step(payoff, step, sum(record.n_heard for record in records))
            if payoff.on == any(record.resting for record in records):
                remote.rest(host, not payoff.on)
        if len(self._hosts) > len(remote.hosts):
            self._hosts = {host: known for host, known in self._hosts.items() if host in remote.hosts}

    def _step(self, payoff: Payoff, step: TimedStep, n_heard: int) -> None:
        payoffs = self._inline_payoff, *(other for _, other in self._hosts.values())
        may_try = not any(other.is_tried for other in payoffs)
        payoff.step(step.n_sessions, step.n_tokens, step.step_s, n_heard=n_heard, may_try=may_try)


NEW = frozenset[int](), Payoff()
