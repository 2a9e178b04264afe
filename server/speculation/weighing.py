"""What models cost each session, and bring it: where that is too little, they rest in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from server.engine.proposer import Ask, CountsBySource, Planned, Proposal, TimedStep
from server.estimators import Ratio
from server.speculation.gating.balance import Overhead
from server.speculation.gating.pricing import Pricing, StepPrice
from server.speculation.groups import LOOKUP, StepCharge
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.sources.synchronous import InlineModel
from server.speculation.speculated import Speculated

# Of what the draft model in the lead spends in a step without a drafter, per step: the last 50 count. Half:
# one hard reply has drafters rest that would save its time; twice: they go on for 50 steps more in one.
SPENT_KEEP = 0.98
GRAMMAR = "grammar"
UNDRAFTED = (LOOKUP, GRAMMAR, "prediction")  # sources that take no model's time


class Weighing:
    """Keeps the balance of every session. Costs are in tokens that plain steps would make in that time."""

    def __init__(
        self,
        sessions: Mapping[int, Speculated],
        pricing: Pricing,
        remote: RemoteDrafters | None,
        inline: InlineModel | None = None,
    ) -> None:
        self._sessions = sessions
        self._pricing = pricing
        self._remote = remote
        self._inline = inline
        self._overhead = Overhead()
        self.row_lost = 0.0  # tokens that plain steps would make in the time of each guess of this step
        self.n_sessions = 1  # that draw a token in this step
        # of a guess of the model in the lead, and of all in a step, while no drafter works beside it
        self._calm_td_s = 0.0
        self._calm_spent_s = Ratio(SPENT_KEEP)

    def allowance(self, asks: Sequence[Ask]) -> float:
        """Tokens that a wider step may cost each of these sessions, on average. Bounded only for a model in
        the lead that shows during decodes, for nearly nothing, whether its guesses are right."""
        if self._inline is None or not self._inline.beside:
            return math.inf
        return sum(self._sessions[ask.session].balance.allowance for ask in asks) / len(asks)

    def charge(self, asks: Sequence[Ask], proposals: Sequence[Proposal], price: StepPrice) -> None:
        """Charge sessions for verifying the guesses of models."""
        lost = self.row_lost = self._pricing.of_guess(price, sum(map(len, proposals)))
        for ask, proposal in zip(asks, proposals, strict=True):
            if proposal:
                n_drafted = len(proposal) - sum(map(proposal.sources.count, UNDRAFTED))
                self._sessions[ask.session].n_lost += lost * n_drafted

    def charge_again(self, asks: Sequence[Ask], price: StepPrice) -> None:
        """Charge sessions for rows that are evaluated again, since guesses of the step before were wrong."""
        lost = self._pricing.of_row_again(price)
        for ask in asks:
            self._sessions[ask.session].n_lost += lost * (ask.n_pending - 1)

    def weigh(self, speculated: Speculated, tally: CountsBySource, *, inside: bool) -> None:
        """After a step of a session in which models guessed, were heard, or rest: have them rest, or go on.
        tally: of its guesses; inside: whether a draft model in the lead may guess. Steps in which no model
        may guess are no rest."""
        balance, remote = speculated.balance, self._remote
        if balance.resting:
            if inside or (remote is not None and remote.may_draft):
                self._rest(speculated)
        else:
            n_lost, heard = speculated.n_lost, speculated.heard
            guessed = n_lost > 0.0
            if heard:
                n_lost += self._overhead.tokens(self._pricing.plain_rate, guessing=bool(tally))
            n_right = sum(n for source, (_, n) in tally.items() if source not in UNDRAFTED)
            balance.step(n_right, n_lost, guessed=guessed, heard=heard, n_sessions=self.n_sessions)
            if remote is not None and balance.resting:
                remote.spare(speculated)
        speculated.n_lost = 0.0

    def passed(self, *, inside: bool) -> None:
        """A step in which nobody is asked, since models rest in all sessions: their rests end in time.
        inside: as in weigh()."""
        if inside or (self._remote is not None and self._remote.may_draft):
            for speculated in self._sessions.values():
                if speculated.balance.resting:
                    self._rest(speculated)

    def _rest(self, speculated: Speculated) -> None:
        """One step of a rest."""
        speculated.balance.rest()
        if self._remote is not None and not speculated.balance.resting:
            self._remote.resume(speculated)

    def stepped(
        self,
        planned: Planned,
        step: TimedStep,
        looked_s: float = 0.0,
        *,
        calm: bool | None = True,
        n_asked: int = 1,
    ) -> StepCharge:
        """What n_asked steps cost: this one, without prompts, and those before it, which are not timed and
        cost as much. looked_s: seconds that lookups took in all; calm: as Pricing.observe takes it."""
        rate = self._pricing.plain_rate
        told, saved, most = self._told(planned, step, rate), None, 0.0
        crowded_s = 0.0 if calm else (self._pricing.crowding - 1.0) * step.decode_s
        if self._inline:
            td_s, source = self._inline.td.value, self._inline.source
            if calm or not self._calm_td_s:
                self._calm_td_s = td_s
            if calm:
                self._calm_spent_s.observe(planned.spent_s, 1.0)
            n_inside = sum(proposal.sources.count(source) for proposal in planned.proposals)
            each = 1.0 / step.n_sessions  # of the time of a round of guesses, one for each session
            crowded_s += each * n_inside * max(0.0, td_s - self._calm_td_s)
            saved, most = rate * each * self._calm_td_s, rate * n_asked * self._calm_spent_s.value
        token_s = 1.0 / rate if rate else 0.0
        return StepCharge(n_asked * told, rate * n_asked * crowded_s, rate * looked_s, saved, most, token_s)

    def _told(self, planned: Planned, step: TimedStep, rate: float) -> float:
        """Tokens for drafters' messages, and for choosing among their guesses, in this step."""
        if self._remote is None:
            return 0.0
        n_told = self._remote.n_told
        guessing = self._overhead.observe(planned, step, n_told)
        return n_told * self._overhead.tokens(rate, guessing=guessing) if n_told else 0.0
