"""Implement the engine's Proposer: collect guesses of all sources, and verify as many as pay.

All sources add their guesses to one tree per session. The planner decides which sources are asked and which
guesses are verified. The speculator carries this out, and the ledger learns from the result.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Sequence

from server.engine.proposer import Ask, OpenedSession, Plan, Proposer, Step, Upcoming
from server.speculation import planner
from server.speculation.hits import HitRates, SessionHitRates
from server.speculation.ledger import Ledger
from server.speculation.lookups import Lookups
from server.speculation.policy import Policy
from server.speculation.shape_times import NextShape
from server.speculation.sources.drafter_record import DrafterRecord
from server.speculation.sources.inline import Inline, InlineModel
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculated import Speculated
from server.speculation.step import GRAMMAR, DraftPlan, Guessers, add_charges
from server.speculation.step_times import StepTimes
from server.speculation.view import View


class Speculator(Proposer):
    """A Proposer with several sources of guesses: lookups, a model in the lead, and drafters.

    A session without any source costs a few microseconds per step.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        remote: RemoteDrafters | None = None,
        inline: InlineModel | None = None,
        times: StepTimes | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin without sessions.

        Args:
            policy: How the lead speculates.
            remote: The drafters on the bus; None: none are used.
            inline: The model in the lead that drafts; None: there is none.
            times: Step times measured when the lead started; None: there are none.
            clock: Returns the time in seconds.
        """
        self._policy, self._remote, self._clock = policy, remote, clock
        self.hits = remote.hits if remote else HitRates()
        self._sessions: dict[int, Speculated] = {}
        self._lookups = Lookups(self._sessions, clock)
        td, source = (inline.td, inline.source) if inline else (None, "")
        self.ledger = ledger = Ledger(policy, times or StepTimes(policy.max_rows), self._sessions, td, source)
        self._inline = Inline(inline, policy, ledger, self._sessions, clock) if inline else None
        self._uses_lookups = policy.lookup and not policy.overlaps  # texts are indexed between steps
        self._met: object = None  # the drafters by machine that the ledger knows
        self._n_expected = 0  # number of sessions with a reply that the client predicted
        self._wire_ids = itertools.count(secrets.randbits(48) << 16)
        self.before = DraftPlan(asked=False)  # the latest plan

    # -- Proposer ----------------------------------------

    def open(self, session: OpenedSession) -> None:
        lookup = self._lookups.open(session.bounds.salt) if self._policy.lookup else None
        speculated = Speculated(next(self._wire_ids), session, SessionHitRates(self.hits), lookup)
        self._sessions[session.id] = speculated
        self._n_expected += speculated.prediction is not None
        if self._remote:
            self._remote.open(speculated)

    def close(self, session: int, *, keep: bool) -> None:
        if (speculated := self._sessions.pop(session, None)) is None:
            return
        self._n_expected -= speculated.prediction is not None
        self._lookups.close(speculated)
        if self._inline:
            self._inline.model.close(session, keep=keep)
        if self._remote:
            self._remote.close(speculated, keep=keep)

    def plan(self, step: Upcoming) -> DraftPlan:
        guessers, n, n_rows = self._take_in(step.n_active), step.n_deciding, step.n_rows
        lookup_s = 0.0
        if self._uses_lookups:
            lookup_s = self._lookups.index(self.ledger.rates.undrafted_s, guesses=guessers.lookup)
        if n and (step.has_grammar or not self._nobody_guesses(guessers)):
            plan = self._asked(step, guessers)
        else:
            plan = DraftPlan(asked=False)
        plan.step, plan.guessers = step, guessers
        if self._inline and guessers.inline and n and n_rows > n and self._model_gains:
            beside = [self._sessions[id] for id in step.prompts() if id in self._sessions]
            plan.spent_s += self._inline.read_prompts(beside, plan.drafting)
        if lookup_s:
            plan.lookup_s += lookup_s
        n_all = n_rows + plan.n_guesses
        if n_all > 1 and not plan.width and step.may_pad():
            plan.width = self.ledger.times.padded(n_all, step.n_cells)
        if n_rows == n:
            plan.rows = plan.width or n_all
        if self._remote:  # including those that resume with this step
            plan.working = self.ledger.working()
        self.before = plan
        return plan

    def learn(self, step: Step) -> None:
        self.ledger.learn(step)
        if remote := self._remote:
            for outcome in step.outcomes:
                remote.count(outcome.tally)
            if not self._policy.overlaps:
                self._tell(remote)
            for speculated in self._sessions.values():
                if speculated.is_spared != bool(speculated.account.paused):
                    (remote.resume if speculated.is_spared else remote.spare)(speculated)

    def meanwhile(self, plan: Plan, *, decodes: bool = True) -> None:
        assert isinstance(plan, DraftPlan)
        if self._remote:
            self._tell(self._remote)
        if not decodes:
            return
        if self._remote:
            self._remote.take_in()
        if self._policy.lookup:
            self._lookups.index(self.ledger.rates.undrafted_s, guesses=plan.guessers.lookup)
        if self._inline and plan.drafting and plan.drafting.beside:
            plan.charges = add_charges(plan.charges, self._inline.guess_beside(plan.drafting))

    def _tell(self, remote: RemoteDrafters) -> None:
        """Send drafters the newly committed tokens of their sessions."""
        for speculated in self._sessions.values():
            if speculated.drafters:
                remote.send_commits(speculated)

    # -- for others ----------------------------------------

    def overlap(self, work: Callable[[], None]) -> None:
        """Call `work` at every future guess of the model in the lead; see InlineModel.overlap()."""
        if self._inline:
            self._inline.model.overlap(work)

    def drafters(self) -> list[DrafterRecord]:
        """Return all drafters on the bus, including refused ones. Safe from any thread."""
        return self._remote.drafters() if self._remote else []

    # -- a step ----------------------------------------

    def _take_in(self, n_active: int) -> Guessers:
        """Handle drafters' messages, pause or resume drafters, and return which sources may guess.

        n_active: Sessions that have a slot or wait for one.
        """
        remote, ledger = self._remote, self.ledger
        if remote:
            remote.drain()
            if remote.hosts is not self._met:
                self._met = remote.hosts
                ledger.meet(remote.hosts, remote.own.kernel)
        if self._policy.gate:
            ledger.renew(n_active)
        guessers = planner.choose_guessers(ledger, n_active, remote, has_inline=self._inline is not None)
        if remote:
            for record, reason in guessers.pauses:
                remote.pause([record], reason)
        return guessers

    @property
    def _model_gains(self) -> bool:
        """True if the model in the lead has gained tokens lately, or the policy has no gate."""
        return not self._policy.gate or bool(self.ledger.inline and self.ledger.inline.gain > 0.0)

    def _nobody_guesses(self, guessers: Guessers) -> bool:
        """Return True if only grammars may guess in this step. Always False if the policy has no gate."""
        if self._n_expected or not self._policy.gate or guessers.lookup:
            return False
        if not guessers.models:
            return True
        return all(one.account.paused for one in self._sessions.values())

    def _asked(self, step: Upcoming, guessers: Guessers) -> DraftPlan:
        """Return the plan of a step in which a source may guess."""
        asks = step.asks()
        lookups_alone = guessers.lookup and not guessers.models
        began = self._clock() if lookups_alone else 0.0
        plan = self._quiet(asks, step, guessers) or self._guessed(asks, step, guessers)
        if lookups_alone:
            plan.lookup_s = self._clock() - began  # nothing would be chosen without lookups
        return plan

    def _quiet(self, asks: Sequence[Ask], step: Upcoming, guessers: Guessers) -> DraftPlan | None:
        """Return an undrafted plan if no source has a guess and no width has to be chosen, else None."""
        if self._policy.again or guessers.inline:
            return None
        for ask in asks:
            if ask.forced or not self._sessions[ask.session].is_quiet(guessers.lookup):
                return None
        if step.n_rows > len(asks) or not self.ledger.times.shapes.pays:
            return DraftPlan()
        if self.before.is_shape or not self.ledger.times.shapes.stays_plain(self._shape(step, 0.0)):
            return None
        return DraftPlan(is_wider=False)

    def _shape(self, step: Upcoming, undrafted_s: float, most_s: float = math.inf) -> NextShape:
        return NextShape(step.n_rows, undrafted_s, self.before.rows, step.n_cells, most_s)

    def _guessed(self, asks: Sequence[Ask], step: Upcoming, guessers: Guessers) -> DraftPlan:
        """Ask sources for guesses, and return the plan."""
        view = self._view(asks, step, guessers)
        if self._policy.gate and not self.ledger.times.knows(step.n_rows) and not view.is_stable:
            return DraftPlan()  # what a plain step costs has to be known first
        lookup_s = self._begin(view)
        spent_s, charges = 0.0, None
        if guessers.inline and self._inline and any(ask.limit > 0 for ask in asks):
            spent_s, charges = self._inline.draft(view, self.before.drafting)
        drafting = view.drafting
        if self._policy.by_rejection:  # its rule needs the distributions that guesses were sampled from
            paths = drafting.paths if drafting else {}
            chains = [self._inline.chain(paths.get(ask.session)) for ask in asks] if self._inline else []
            plan = planner.finished(view, chains, list(map(len, chains)))
            plan.proposals = chains
        else:
            plan = planner.plan(view)
        plan.charges = add_charges(plan.charges, charges)
        plan.spent_s, plan.lookup_s, plan.drafting = spent_s, lookup_s, drafting
        if plan.n_guesses:
            uncrowded_s = self.ledger.rates.uncrowded_s(step.n_rows, step.n_cells)
            plan.undrafted_s = min(view.undrafted_s, uncrowded_s)
        return plan

    def _view(self, asks: Sequence[Ask], step: Upcoming, guessers: Guessers) -> View:
        """Return the planner's input for this step."""
        ledger, policy, n_rows, n = self.ledger, self._policy, step.n_rows, len(asks)
        times, sessions = ledger.times, [self._sessions[ask.session] for ask in asks]
        is_stable = sessions[0].session.bounds.exactness == "width-stable"  # such a session is alone
        seconds: Sequence[float] = times.curve(step.n_cells)
        undrafted_s, shape = seconds[min(n_rows, len(seconds) - 1)], None
        may_choose = times.shapes.pays and policy.gate and not policy.by_rejection
        if may_choose and not is_stable and not guessers.nobody and n_rows == n:
            undrafted_s = times.undrafted_s(n_rows, seconds)
            allowance = math.inf
            if self._inline and self._inline.model.beside:
                # one guess during the decode shows whether it is right
                allowance = sum([one.account.allowance for one in sessions]) / n
            shape = self._shape(step, undrafted_s, allowance * undrafted_s if undrafted_s else math.inf)
            seconds = times.shapes.seconds(shape)
        undrafted_rate = (n if policy.again else n_rows) / undrafted_s if undrafted_s else 0.0
        rate = max(ledger.rates.throughput.value, undrafted_rate)
        view = View(policy, asks, sessions, times, n_rows, seconds, undrafted_s, rate, ledger.rates.guess_s)
        view.guessers, view.shape, view.is_stable = guessers, shape, is_stable
        if policy.gate:
            view.on_trial = ledger.on_trial
        return view

    def _begin(self, view: View) -> float:
        """Add guesses of grammars, clients and lookups to the trees.

        Returns:
            The seconds taken; 0.0 if lookups may not guess.
        """
        lookups = view.guessers.lookup
        began = self._clock() if lookups else 0.0
        for ask, speculated in zip(view.asks, view.sessions, strict=True):
            if ask.limit <= 0:
                continue
            if speculated.prediction is not None:
                speculated.expect(ask.limit)
            if lookups:
                speculated.look_up(ask.limit)
            if ask.forced:
                speculated.tree.guess(GRAMMAR, ask.forced, [255] * len(ask.forced))
        return self._clock() - began if lookups else 0.0
