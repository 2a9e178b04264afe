"""Learn from steps what sources gain and cost, and keep their accounts.

Only Ledger.learn() learns, except for hit rates, which trees learn when tokens are committed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from server.engine.proposer import CountsBySource, Step, StepTiming
from server.estimators import Median, Ratio
from server.speculation.account import Account, GroupAccount
from server.speculation.drafter_host import (
    BASELINE_STEPS,
    OF_GROUP,
    Charge,
    DrafterHost,
    host_name,
    meet,
)
from server.speculation.policy import Policy
from server.speculation.potential import PAYS, potential
from server.speculation.rates import KEEP_RATE, Rates
from server.speculation.sources.drafter_record import N_ASSIGNED, DrafterRecord
from server.speculation.speculated import Speculated
from server.speculation.step import LOOKUP, NO_MODEL, DraftPlan
from server.speculation.step_times import REFRESH, RENEWED, StepTimes

INSIDE = "in the lead"  # the group of the draft model
# Tokens that a draft model in the lead may lose at first, per share of time that it could save at best: 12
# where it could double the speed. Half: two sessions of the bundled pair reach 1.21 of the undrafted speed
# instead of 1.25; twice: a bad model costs twice as much (benchmarks.inside --every-way --sessions 2).
STAKED = 25.0

# Evidence of a step in a session's account (IN_SESSION): of a step with guesses for this session alone, and
# with drafters' messages. A step with guesses for several sessions counts 1.
EVIDENCE_ALONE, EVIDENCE_HEARD = 8.0, 2.0


class Ledger:
    """Times and rates of steps, and the accounts of all sources."""

    def __init__(
        self,
        policy: Policy,
        times: StepTimes,
        sessions: Mapping[int, Speculated],
        td: Median | None = None,
        source: str = "",
    ) -> None:
        """Begin with empty accounts.

        Args:
            policy: How the lead speculates.
            times: Seconds of steps.
            sessions: Open sessions, by id.
            td: Seconds that the model in the lead takes for a round of guesses; None: there is no such model.
            source: Name of that model as a source.
        """
        self.times, self.rates = times, Rates(times)
        self.lookup = GroupAccount(OF_GROUP) if policy.lookup and policy.gate else None
        self.inline = GroupAccount(Account) if td is not None and policy.gate else None
        self.probes = Account()  # guesses of the model in the lead that do not seem to pay
        self.machines: dict[str, DrafterHost] = {}  # by name
        self._groups: list[GroupAccount] = []
        self.on_trial: set[str] = set()  # ids of drafters that must have one guess verified
        self._regroup()
        self.may_pay = True  # whether any guess may pay
        self.stake = STAKED  # tokens that the draft model may lose
        self.policy, self._sessions = policy, sessions
        self._td, self._source = td, source
        self._known: Mapping[str, object] = {}  # accounts before the restart, by name
        self._has_times = False  # step times are known
        self._renewed_for, self._n_until_renewed = 0, 0  # number of sessions; steps
        self._n_passed = 0  # steps in a row in which nobody was asked
        self._n_asked, self._lookup_s = 0, 0.0  # asked steps, seconds of lookups, since the latest timed step
        # seconds of a guessing round of the model in the lead, and of all its guesses in a step, uncrowded
        self._uncrowded_td_s, self._uncrowded_spent_s = 0.0, Ratio(KEEP_RATE)

    # -- who may guess ----------------------------------------

    def renew(self, n_active: int) -> None:
        """Estimate whether guesses can pay with n_active sessions, unless this was done lately.

        Call before each step. The estimate is renewed when n_active has changed, and every RENEWED steps.
        """
        self._n_until_renewed -= 1
        if n_active == self._renewed_for and self._n_until_renewed > 0:
            return
        self._renewed_for, self._n_until_renewed = n_active, RENEWED
        if not n_active:
            return
        seconds = self.times.by_guesses(n_active, self.rates.n_cells)
        known = any(seconds)
        self.may_pay = self.times.shapes.pays or not known or potential(seconds, n_active) >= PAYS
        if self._td is not None:
            best = potential(seconds, n_active, self._td.value) if known else math.inf
            self.stake = STAKED * (1.0 - 1.0 / best)
            if known and not self._has_times:  # as if a probe had been made: other guesses come first
                self.probes.book(-self._td.value * n_active / seconds[n_active])
        self._has_times = known

    def meet(self, hosts: Mapping[str, Sequence[DrafterRecord]], own_kernel: str) -> None:
        """Update the machines and their accounts after drafters have joined or left.

        Args:
            hosts: Drafters by machine.
            own_kernel: kernel_id() of the lead: drafters with the same kernel_id() use the lead's cores.
        """
        pausing = {
            host
            for host, one in self.machines.items()
            if not (one.account and one.account.of(self._renewed_for).is_active)
        }
        self.machines = meet(self.machines, hosts, own_kernel, pausing, self._known)
        self._regroup()

    def _regroup(self) -> None:
        """Update the list of group accounts, and the set of drafters on trial."""
        groups = self.lookup, self.inline, *[machine.account for machine in self.machines.values()]
        self._groups = [group for group in groups if group]
        self.on_trial = {record.presence.id for machine in self.machines.values() for record in machine.new}

    def working(self) -> list[str]:
        """Return the machines whose drafters have a session and whose gains must be counted."""
        machines = self.machines.items()
        return [host for host, one in machines if one.counts and any(map(N_ASSIGNED, one.records))]

    # -- restarts ----------------------------------------

    def memory(self) -> dict[str, object]:
        """Return the accounts' state for recall() after a restart."""
        machines = self.machines.items()
        now = {host_name(host, one.records): one.account.memory() for host, one in machines if one.account}
        own = {LOOKUP: self.lookup, INSIDE: self.inline}
        return dict(self._known) | now | {name: one.memory() for name, one in own.items() if one}

    def recall(self, memory: object) -> None:
        """Continue the accounts that memory() returned before a restart. Anything but a dict is ignored."""
        self._known = cast(dict[str, object], memory) if isinstance(memory, dict) else {}
        if self.lookup:
            self.lookup.recall(self._known.get(LOOKUP))
        if self.inline:
            self.inline.recall(self._known.get(INSIDE))

    # -- learning ----------------------------------------

    def learn(self, step: Step) -> None:
        """Learn what a finished step took, and how much its guesses gained."""
        plan, timing = step.plan, step.timing
        assert isinstance(plan, DraftPlan)
        uncrowded = not (plan.working and self._is_crowded(plan))
        self._wait(plan)
        if self.times.shapes.steady:
            self._learn_shape(plan)
        if plan.lookup_s:
            self._lookup_s += plan.lookup_s
        if plan.asked:
            self._learn_guesses(step, plan)
        if timing is None:
            return
        n_asked, self._n_asked = self._n_asked or 1, 0
        lookup_s, self._lookup_s = self._lookup_s, 0.0
        # of steps in a row in which no source was asked, after two baselines: learning is 3 percent of 1 ms
        if self._n_passed > 2 * BASELINE_STEPS and self._n_passed % REFRESH:
            return
        self._book_inline(plan, timing)
        self.rates.learn(plan, timing, uncrowded=uncrowded)
        if self.policy.gate:
            lookup_s = self._lookup_cost_s(plan, timing, lookup_s, n_asked) if self.lookup else 0.0
            self._book(step, timing, lookup_s, self._charge(plan, timing, uncrowded, n_asked))

    def _learn_guesses(self, step: Step, plan: DraftPlan) -> None:
        """Count a step in which a source was asked, in the accounts of its sessions."""
        self._n_asked += 1
        for outcome in step.outcomes if self.policy.gate else ():
            speculated = self._sessions.get(outcome.session)
            if speculated is not None:
                self._weigh(speculated, outcome.tally, plan)

    def _is_crowded(self, plan: DraftPlan) -> bool:
        """Return True if a drafter worked on the lead's cores during this step."""
        return any(self.machines[host].account for host in plan.working if host in self.machines)

    def _wait(self, plan: DraftPlan) -> None:
        """Count the step for paused accounts."""
        n_active, is_passed = plan.step.n_active, not plan.asked
        if plan.step.n_deciding:
            self._n_passed = self._n_passed + 1 if is_passed else 0
            if is_passed and plan.guessers.may_model:
                for speculated in self._sessions.values():
                    if speculated.account.paused:
                        speculated.account.wait()
        for group in self._groups:
            if n_active and (account := group.of(n_active)).paused:
                # a baseline of lookups counts only steps that only decode and ask no source
                is_seen = group is self.lookup and is_passed and plan.rows
                if not account.is_baseline or is_seen:
                    account.wait()
        if self._td is not None:
            self._book_probe(plan)

    def _book_probe(self, plan: DraftPlan) -> None:
        """Book the cost of a probing guess in the account of probes, or count one step of its pause."""
        if plan.drafting and plan.drafting.probe_s and self.rates.undrafted_rate:
            self.probes.book(-plan.drafting.probe_s * self.rates.undrafted_rate)
        elif self.probes.paused:
            self.probes.wait()

    def _learn_shape(self, plan: DraftPlan) -> None:
        """Tell ShapeTimes whether a wider step was best; rows of a prompt interrupt its runs."""
        shapes = self.times.shapes
        if not plan.step.n_active:
            return
        if not plan.rows:
            shapes.interrupted()
        elif plan.is_wider is not None:
            shapes.chosen(is_wider=plan.is_wider)

    def _weigh(self, speculated: Speculated, tally: CountsBySource, plan: DraftPlan) -> None:
        """Count a step in a session's account, if models work for the session or pause in it.

        A step in which no model may guess does not count as a pause. `tally` has the verified guesses.
        """
        account, lost = speculated.account, self._lost(speculated, tally, plan)
        if account.paused:
            if plan.guessers.may_model:
                account.wait()
            return
        heard, guessed = speculated.heard, lost > 0.0
        if not (heard or guessed):
            return
        evidence = EVIDENCE_HEARD if heard else 0.0
        if guessed:
            evidence = max(evidence, EVIDENCE_ALONE if plan.step.n_deciding == 1 else 1.0)
        if heard:
            lost += self.rates.python.drafters_cost(self.rates.undrafted_rate, guessing=bool(tally))
        n_right = sum([n for source, (_, n) in tally.items() if source not in NO_MODEL])
        account.book(n_right - lost, evidence=evidence, n_sessions=plan.step.n_deciding)

    def _lost(self, speculated: Speculated, tally: CountsBySource, plan: DraftPlan) -> float:
        """Return the tokens that models' guesses cost the session.

        A right guess of the model in the lead that was not verified is free in two cases: it was a probe,
        made only to see whether it is right; or verifying it would have changed the step's width. A right
        probe also lets the next guesses of the session cost one token more.
        """
        session = speculated.session
        lost = plan.charges.get(session.id, 0.0) if plan.charges else 0.0
        path = plan.drafting.paths.get(session.id) if plan.drafting and not tally else None
        if path is None or path.tokens[:1] != list(session.tokens[-1:]):
            return lost
        if path.is_probe:
            speculated.account.allowance += 1.0
        is_free = path.is_probe or (self.times.shapes.pays and not plan.is_shape)
        return 0.0 if is_free else lost

    def _book_inline(self, plan: DraftPlan, timing: StepTiming) -> None:
        """Count what the model in the lead gained, less what undrafted steps make in the same time."""
        if not (self.inline and plan.spent_s) or plan.is_stable:  # a stable step has its width in any case
            return
        n = timing.n_sessions
        undrafted_s = self.times.curve(timing.n_cells)[min(n, self.policy.max_rows)]
        if undrafted_s:
            more_s = plan.spent_s + self.rates.undisturbed_s(timing) - undrafted_s
            net = timing.n_tokens - n - n / undrafted_s * more_s
            account = self.inline.of(n)
            if account.is_active:
                account.book(net / n, stake=self.stake)

    def _lookup_cost_s(self, plan: DraftPlan, timing: StepTiming, lookup_s: float, n_asked: int) -> float:
        """Return the seconds that lookups cost in n_asked steps: at least lookup_s, the time of their code.

        If only lookups guess, this includes the other time outside the decode that undrafted steps do not
        have: the time to ask for guesses and to verify them.
        """
        outside_s, n = timing.step_s - timing.decode_s - plan.spent_s, timing.n_sessions
        if self._n_passed:
            self.rates.python.observe("passed", n, outside_s)
        elif plan.guessers.lookup and not plan.guessers.models:
            usual_s = self.rates.python.usual_s("passed", n)
            if usual_s is not None:
                return max(lookup_s, n_asked * (outside_s - n * usual_s))
        return lookup_s

    def _charge(self, plan: DraftPlan, timing: StepTiming, uncrowded: bool, n_asked: int) -> Charge:
        """Return what drafters cost in n_asked steps (this and untimed ones before it), except for rows.

        uncrowded: True if no drafter worked on the lead's cores in this step.
        """
        rate = self.rates.undrafted_rate
        told, saved, most = self._messages_cost(plan, timing, rate), None, 0.0
        crowded_s = 0.0 if uncrowded else (self.rates.crowding - 1.0) * timing.decode_s
        if self._td is not None:
            td_s = self._td.value
            if uncrowded or not self._uncrowded_td_s:
                self._uncrowded_td_s = td_s
            if uncrowded:
                self._uncrowded_spent_s.observe(plan.spent_s, 1.0)
            n_inside = sum([proposal.sources.count(self._source) for proposal in plan.proposals])
            each = 1.0 / timing.n_sessions  # a session's share of the time of a round of guesses
            crowded_s += each * n_inside * max(0.0, td_s - self._uncrowded_td_s)
            saved, most = rate * each * self._uncrowded_td_s, rate * n_asked * self._uncrowded_spent_s.value
        token_s = 1.0 / rate if rate else 0.0
        return Charge(n_asked * told, rate * n_asked * crowded_s, saved, most, token_s)

    def _messages_cost(self, plan: DraftPlan, timing: StepTiming, rate: float) -> float:
        """Return what drafters' messages cost in this step, in tokens; a second is worth `rate` tokens."""
        if not self.machines:
            return 0.0
        n_sent = sum([bool(one.drafters) for one in self._sessions.values()]) if plan.guessers.drafters else 0
        guessing = plan.n_guesses > 0
        outside_s = max(0.0, timing.step_s - timing.decode_s - plan.spent_s)
        self.rates.python.observe_messages(timing, outside_s, n_sent, guessing=guessing)
        return n_sent * self.rates.python.drafters_cost(rate, guessing=guessing) if n_sent else 0.0

    def _book(self, step: Step, timing: StepTiming, lookup_s: float, charge: Charge) -> None:
        """Count a step's gains, less its costs, in the accounts of lookups and drafters.

        Lookups took lookup_s seconds; `charge` has the costs of the drafters.
        """
        plan = cast(DraftPlan, step.plan)
        n, tallies = timing.n_sessions, [outcome.tally for outcome in step.outcomes]
        was_on_trial = bool(self.on_trial)
        for host, machine in self.machines.items():
            if host in plan.working:  # otherwise the accounts of all its sessions pause
                machine.book(n, _sum(tallies, machine.ids), plan.guess_cost, charge)
            elif machine.account and (account := machine.account.of(plan.step.n_active)).is_baseline:
                account.wait()
        if was_on_trial:
            self._regroup()
        if self.lookup:
            n_verified, n_right = _sum(tallies, (LOOKUP,))
            account = self.lookup.of(n)
            if account.is_active or account.is_baseline:  # lookups guess in a baseline if a model does
                net = n_right - plan.guess_cost * n_verified - self.rates.undrafted_rate * lookup_s
                account.book(net / n)


def _sum(tallies: Sequence[CountsBySource], sources: frozenset[str] | tuple[str, ...]) -> tuple[int, int]:
    """Return how many guesses of these sources were verified, and how many of them were accepted."""
    n_verified = n_right = 0
    for tally in tallies:
        for source, (verified, right) in tally.items():
            if source in sources:
                n_verified, n_right = n_verified + verified, n_right + right
    return n_verified, n_right
