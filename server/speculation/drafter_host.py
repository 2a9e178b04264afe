"""Group the drafters of one machine, which share an account if they use the lead's cores. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from server.speculation.account import Account, GroupAccount
from server.speculation.sources.drafter_record import DrafterRecord

# Tokens per session that a group may lose before it has gained any. Half: one hard reply, in which models
# pause after 12 steps, may use up the drafters' credit; twice: a bad drafter costs 10 tokens at first.
CREDIT = 5.0
# Steps of a baseline: lookups, or drafters that join on the lead's cores, pause, so that steps without them
# are timed. Half: too few steps remain after the first ones, which are slow; twice: half of a short reply has
# no guesses.
BASELINE_STEPS = 16
# Seconds that a new drafter may cost until one of its guesses is right. Half: where a step takes 1 ms, but 6
# to 14 ms beside a drafter, one drafter in seven pauses before its first right guess; twice: a bad drafter
# costs a second more.
TRIAL_S = 1.0
OF_GROUP = partial(Account, CREDIT, baseline_steps=BASELINE_STEPS)


class Charge(NamedTuple):
    """Costs of drafters in a timed step and in the untimed steps before it.

    The unit: tokens that undrafted steps would make in the same time.
    """

    told: float = 0.0  # cost of handling messages and choosing among guesses
    crowded: float = 0.0  # extra decode time because drafters used the lead's cores
    # what one guess of a drafter saves, since the draft model in the lead need not make it; None: no model
    saved: float | None = None
    most_saved: float = 0.0  # maximum total saving: the usual cost of all guesses of that model
    token_s: float = 0.0  # seconds per token of undrafted steps


@dataclass(slots=True)
class DrafterHost:
    """The drafters of one machine, and the accounts of what they gain and cost."""

    records: Sequence[DrafterRecord]
    account: GroupAccount | None  # None: they use no core of the lead
    ids: frozenset[str] = frozenset()
    new: Sequence[DrafterRecord] = ()  # drafters on trial: they may run at a loss until a guess is right
    trial: Account | None = None
    alone: bool = False  # the machine's other drafters pause during the trial

    @property
    def counts(self) -> bool:
        """True if its drafters' gains must be counted: one is on trial, or they use the lead's cores."""
        return bool(self.new) or self.account is not None

    def book(self, n: int, tally: tuple[int, int], guess_cost: float, charge: Charge) -> None:
        """Count a step of n sessions: the drafters' gain, less the cost of rows, messages and slower decodes.

        Args:
            n: Sessions.
            tally: Number of the drafters' verified guesses, and of the accepted ones among them.
            guess_cost: Tokens that each verified guess costs.
            charge: The drafters' costs other than rows.
        """
        n_verified, n_right = tally
        brought = n_right - guess_cost * n_verified
        if charge.saved is not None:  # the draft model would have had these rows, too
            brought = min(n_verified * charge.saved, charge.most_saved)
        net, on_trial = brought - charge.told, False
        if self.account:
            net -= charge.crowded
        if self.new and self.trial:
            self.trial.book(net * charge.token_s)
            if self.trial.paused or all(record.counts["accepted"] for record in self.new):
                self.new = ()
            on_trial = bool(self.new)
        if self.account:
            account = self.account.of(n)
            if account.is_active or account.is_baseline:
                account.book(net / n, stake=math.inf if on_trial else CREDIT)


def meet(
    before: Mapping[str, DrafterHost],
    hosts: Mapping[str, Sequence[DrafterRecord]],
    own_kernel: str,
    pausing: Collection[str],
    known: Mapping[str, object],
) -> dict[str, DrafterHost]:
    """Return the machines, by name, with their current drafters.

    A machine whose drafters use the lead's cores has an account of what they gain and cost; losses pause
    them. The account is new if the machine is new, or if a drafter joins the machine while it pauses. A new
    account has no gain or loss, but resumes the pauses that `known` has for it (GroupAccount.recall()).

    Args:
        before: The machines so far, by name.
        hosts: The drafters now, by machine.
        own_kernel: kernel_id() of the lead: drafters with the same kernel_id() use the lead's cores.
        pausing: Machines whose account pauses them, or that have no account.
        known: Pauses of accounts from before a restart of the lead, by host_name().
    """
    found = dict[str, DrafterHost]()
    joined = {record.join for machine in before.values() for record in machine.records}
    joins = any(record.join in joined for records in hosts.values() for record in records)
    for host, records in hosts.items():
        machine = before.get(host)
        alone = machine is not None and any(record.rests for record in machine.records)
        new = [record for record in records if record.join not in joined]
        if machine is None or (new and host in pausing):
            account = None
            if any(record.presence.kernel == own_kernel for record in records):
                account = GroupAccount(OF_GROUP)
                account.recall(known.get(host_name(host, records)))
            machine = DrafterHost(records, account)
        machine.records, machine.ids = records, frozenset(r.presence.id for r in records)
        machine.new = [record for record in machine.new if record in records]  # without those that left
        if new and (joins or not machine.account):
            machine.new, machine.trial, machine.alone = new, Account(TRIAL_S), alone
        found[host] = machine
    return found


def host_name(host: str, records: Sequence[DrafterRecord]) -> str:
    """Return a name for a machine and the models of its drafters; it is the same after a restart."""
    return f"{host}: {', '.join(sorted(record.presence.model for record in records))}"
