"""A ledger that is told of steps whose cost is given, and drafters that pause as it says."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence

from server.engine.proposer import CountsBySource, Outcome, Step, StepTiming, Upcoming
from server.estimators import Median
from server.speculation import planner
from server.speculation.drafter_host import Charge
from server.speculation.ledger import Ledger
from server.speculation.policy import Policy
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.step import DraftPlan, Guessers
from server.speculation.step_times import StepTimes

TIMING = StepTiming(n_rows=1, n_cells=9, decode_s=1.0, step_s=1.0, n_tokens=1, n_sessions=1)


class Priced(Ledger):
    """A ledger whose steps cost what `charge` says."""

    charge = Charge()

    def _charge(self, plan: DraftPlan, timing: StepTiming, uncrowded: bool | None, n_asked: int) -> Charge:
        return self.charge


class Taught:
    """A ledger, and the drafters it accounts for.

    A plain step makes a token in a second.
    """

    def __init__(
        self,
        remote: RemoteDrafters | None = None,
        td: Median | None = None,
        *,
        lookup: bool = False,
        seconds: Sequence[float] = (),
    ) -> None:
        """Make the ledger.

        seconds: of a step by rows, from one on.
        """
        self.remote, self._has_inline = remote, td is not None
        times = StepTimes(len(seconds) or 4, dict(enumerate(seconds, start=1)))
        self.ledger = Priced(Policy(lookup=lookup), times, {}, td, "draft")
        self.guessers = Guessers()
        self._met: object = None

    def serve(self, n_active: int = 1) -> Guessers:
        """Find out who may guess with this number of sessions, and pause the others."""
        ledger, remote = self.ledger, self.remote
        if remote and remote.hosts is not self._met:
            self._met = remote.hosts
            ledger.meet(remote.hosts, remote.own.kernel)
        ledger.renew(n_active)
        self.guessers = planner.choose_guessers(ledger, n_active, remote, has_inline=self._has_inline)
        for record, reason in self.guessers.pauses:
            assert remote is not None
            remote.pause([record], reason)
        return self.guessers

    def learn(
        self,
        charge: Charge | None = None,
        tally: CountsBySource | None = None,
        *,
        guess_cost: float = 0.0,
        lookup_s: float = 0.0,
        spent_s: float = 0.0,
        timing: StepTiming = TIMING,
    ) -> None:
        """Tell of a step of the sessions that were served last."""
        n, self.ledger.charge = timing.n_sessions, charge or Charge()
        plan = DraftPlan(asked=not self.guessers.nobody, spent_s=spent_s)
        plan.step, plan.rows = Upcoming(n, n), n
        plan.guessers, plan.guess_cost, plan.lookup_s = self.guessers, guess_cost, lookup_s
        machines = self.ledger.machines.items()
        plan.working = [host for host, one in machines if any(record.n_assigned for record in one.records)]
        self.ledger.learn(Step(plan, timing, [Outcome(1, timing.n_tokens, tally or {})]))

    def warm_up(self, n: int) -> None:
        """Take n steps that show the times without lookups and drafters."""
        for _ in range(n):
            self.serve()
            self.learn()
