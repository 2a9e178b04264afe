"""The engine's Proposer: guesses of all sources, as many as pay.

Sources graft into one tree per session; the gate takes from all trees together what gains more tokens than
its time costs, by the measured costs of steps and by how often each source was right.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Sequence

from server.engine.proposer import (
    NOTHING,
    Ask,
    CountsBySource,
    OpenedSession,
    Planned,
    Proposal,
    Proposer,
    TimedStep,
)
from server.speculation.gating.acceptance import Acceptance, SessionAcceptance
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.gate import with_losses
from server.speculation.gating.pricing import Pricing, StepPrice
from server.speculation.gating.tree import OfferBounds
from server.speculation.gating.widths import PLAIN, Widths
from server.speculation.groups import Groups
from server.speculation.lookups import Lookups
from server.speculation.policy import Policy
from server.speculation.sources.drafter_record import DrafterRecord
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.sources.synchronous import InlineModel, Synchronous
from server.speculation.speculated import Speculated
from server.speculation.weighing import GRAMMAR, Weighing

# Steps in a row without anybody who guesses that are all learned from, and of how many later ones one is:
# to learn takes 3 percent of a step of 1 ms. Half or twice: twice or half of an eighth of that.
ALL_OF, ONE_OF = 32, 8


class Speculator(Proposer):
    """Sessions without any source cost a few microseconds a step."""

    def __init__(
        self,
        policy: Policy,
        *,
        remote: RemoteDrafters | None = None,
        inline: InlineModel | None = None,
        costs: StepCosts | None = None,
        widths: Widths | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy = policy
        self.acceptance = remote.acceptance if remote else Acceptance()
        self._remote = remote
        self._clock = clock
        self.pricing = Pricing(costs or StepCosts(policy.max_rows), widths or Widths({}), again=policy.again)
        td = inline.td if inline else None
        self.groups = groups = Groups(remote, td, lookup=policy.lookup) if policy.gate else None
        brought = groups.model_brought if groups else float
        self._inline = Synchronous(inline, policy, clock, brought) if inline else None
        self._sessions: dict[int, Speculated] = {}
        self._lookups = Lookups(self._sessions, clock, guesses=policy.lookup, overlaps=policy.overlaps)
        self._weighing = Weighing(self._sessions, self.pricing, remote, inline)
        self._n_expected = 0  # sessions whose client expects a reply
        self._wire_ids = itertools.count(secrets.randbits(48) << 16)
        self._late: tuple[Planned, TimedStep, int, int] | None = None  # not learned from yet
        self._n_active, self._ahead = 0, False  # of the latest drain(); the next one is done already
        self._n_passed = 0  # steps in a row in which nobody was asked
        self._n_asked = 0  # those in which somebody was, since the latest timed one: prompts are not timed

    # -- Proposer ----------------------------------------

    def drain(self, n_active: int) -> None:
        ahead, self._ahead = self._ahead and n_active == self._n_active, False
        self._n_active = n_active
        if not ahead:
            self._drain(n_active)
        elif self._remote:
            self._remote.take_in()

    def _drain(self, n_active: int) -> None:
        if self._remote:
            self._remote.drain()
        if self.groups:
            self.groups.serve(n_active, self.pricing.seconds, padded=self.pricing.widths.pays)
        if self._policy.lookup:
            if self.groups:
                self._lookups.guesses = guesses = self.groups.lookup_guesses
                self._lookups.alone = guesses and self.groups.models_rest
            if not self._policy.overlaps:
                self._lookups.index(self.pricing.plain_s)

    def open(self, session: OpenedSession) -> None:
        lookup = self._lookups.open(session.bounds.salt) if self._policy.lookup else None
        speculated = Speculated(next(self._wire_ids), session, SessionAcceptance(self.acceptance), lookup)
        self._sessions[session.id] = speculated
        self._n_expected += speculated.prediction is not None
        self._interrupt(len(session.tokens))
        if self._remote:
            self._remote.open(speculated)

    def rests(self) -> bool:
        groups = self.groups
        if self._n_expected or groups is None or groups.lookup_guesses:
            return False
        return groups.all_rest or all(one.balance.resting for one in self._sessions.values())

    def passed(self, n_sessions: int, n_rows: int) -> None:
        self._n_passed += 1
        self._interrupt(n_rows - n_sessions)
        self.pricing.widths.planned(PLAIN, n_rows if n_rows == n_sessions else 0)
        self._weighing.passed(inside=self._model_guesses)
        if self.groups and n_rows == n_sessions:
            self.groups.passed()

    def propose(self, asks: Sequence[Ask], n_rows: int, n_cells: int) -> Planned:
        lookups, self._n_passed = self._lookups, 0
        self._n_asked += 1
        began = self._clock() if lookups.alone else 0.0
        self._weighing.n_sessions = len(asks)
        self._interrupt(n_rows - len(asks))
        planned = Planned([NOTHING] * len(asks))
        if not self._is_quiet(asks, n_rows, n_cells):
            planned = self._propose(asks, n_rows, n_cells)
        if lookups.alone:
            lookups.took(began)  # nothing would be chosen without them
        rows = planned.width or n_rows + sum(map(len, planned.proposals))
        self.pricing.widths.planned(planned.width, rows if n_rows == len(asks) else 0)
        return planned

    def _is_quiet(self, asks: Sequence[Ask], n_rows: int, n_cells: int) -> bool:
        """Whether the step is plain whatever it costs: nobody has a guess, and no width has to be chosen."""
        if self._policy.again or (self._inline and self._model_guesses):
            return False
        widths, looks = self.pricing.widths, self._lookups.guesses
        for ask in asks:
            if ask.forced or not self._sessions[ask.session].is_quiet(looks):
                return False
        return n_rows > len(asks) or not widths.pays or widths.stays_plain(n_rows, n_cells)

    def _propose(self, asks: Sequence[Ask], n_rows: int, n_cells: int) -> Planned:
        stable = self._is_stable(asks[0])
        if self._policy.gate and not self.pricing.costs.knows(n_rows) and not stable:
            return Planned([NOTHING] * len(asks))  # what a plain step costs has to be known first
        may_pad = not stable and self._may_pad(asks, n_rows)
        allowance = self._weighing.allowance(asks) if may_pad else math.inf
        price = self.pricing.step(len(asks), n_rows, n_cells, may_pad=may_pad, allowance=allowance)
        if self._policy.again:
            self._weighing.charge_again(asks, price)
        wanting = [ask for ask in asks if ask.limit > 0]
        least, least_by_lookup = self._bounds(price, stable=stable, may_pad=may_pad)
        searches = self._lookups.guesses and not self._lookups.alone
        began = self._clock() if searches else 0.0
        for ask in wanting:
            self._begin(ask, least_by_lookup)
        if searches:
            self._lookups.took(began)
        inline = self._inline if self._inline and wanting and self._model_guesses else None
        spent_s = self._draft(inline, asks, price, least) if inline else 0.0
        if self._policy.by_rejection:  # its rule needs the distributions that guesses were sampled from
            chains = [inline.chain(ask.session) if inline else NOTHING for ask in asks]
            self._weighing.charge(asks, chains, price)
            return self._planned(chains, price, spent_s)
        proposals = [self._offer(ask, least) for ask in asks]
        offers = [proposal.probabilities for proposal in proposals]
        guessed = any(offers)
        if may_pad:
            price = self.pricing.padded(price, sorted(itertools.chain(*offers), reverse=True))
        counts = [0] * len(asks)
        if guessed and (stable or not self._policy.gate):
            counts = list(map(len, offers))
        elif guessed:
            again = [ask.n_pending for ask in asks] if self._policy.again else ()
            counts = self.pricing.chosen(price, offers, again, self._policy.n_tail)
            if self.groups and self.groups.introduced and not may_pad:
                self.groups.introduce(proposals, counts)
        if guessed:
            proposals = self._taken(asks, proposals, counts)
            self._weighing.charge(asks, proposals, price)
        return self._planned(proposals, price, spent_s)

    def _interrupt(self, n_other: int) -> None:
        """A step has this number of rows beside one for each session."""
        if n_other:
            self._learn()
            self.pricing.widths.interrupted()

    def _planned(self, proposals: Sequence[Proposal], price: StepPrice, spent_s: float) -> Planned:
        undrafted_s = self.pricing.undrafted_s(price) if any(proposals) else 0.0
        return Planned(proposals, price.width, spent_s, undrafted_s)

    def _bounds(self, price: StepPrice, *, stable: bool, may_pad: bool) -> tuple[float, float]:
        """The path probability below which a guess costs more Python time than it is worth, so that none is
        offered; and below which lookups make none, since its row costs time as well."""
        if stable or self._policy.again or self.groups is None or self.groups.introduced:
            return 0.0, 0.0
        by_row = self._lookups.guesses and not may_pad  # in a padded step some are free
        return price.lost, price.lost + (price.rate * self.pricing.row_s(price.n_rows) if by_row else 0.0)

    def _begin(self, ask: Ask, least: float) -> None:
        """Guess what a grammar, the client and, if lookups guess, earlier texts say of this session. least:
        path probability of lookups' guesses."""
        speculated = self._sessions[ask.session]
        if speculated.prediction is not None:
            speculated.expect(ask.limit)
        if self._lookups.guesses:
            speculated.look_up(ask.limit, least)
        if ask.forced:
            speculated.tree.guess(GRAMMAR, ask.forced, [255] * len(ask.forced))

    def _taken(self, asks: Sequence[Ask], offers: list[Proposal], counts: list[int]) -> list[Proposal]:
        """The guesses that are verified."""
        least = [self._sessions[ask.session].session.bounds.n_min for ask in asks]
        return [
            offer.take(n if n >= n_min else 0) for offer, n, n_min in zip(offers, counts, least, strict=True)
        ]

    def padded(self, n_rows: int, n_cells: int) -> int:
        return n_rows if self.pricing.widths.pays else self.pricing.costs.padded(n_rows, n_cells)

    def committed(self, session: int, n: int, tally: CountsBySource) -> None:
        speculated = self._sessions[session]
        if self._lookups.guesses:
            self._lookups.committed(speculated, n)
        if speculated.prediction is not None:
            speculated.prediction.extend(speculated.session.tokens[-n:])
        if self._remote and (tally or speculated.drafters):
            self._remote.committed(speculated, n)
            self._remote.count(tally)
        if self.groups and tally:
            self.groups.count(tally, self._weighing.row_lost)
        if speculated.n_lost and not tally and self._inline:
            self._inline.missed(speculated, self.pricing.widths)
        if self._policy.gate and (speculated.n_lost or speculated.heard or speculated.balance.resting):
            self._weighing.weigh(speculated, tally, inside=self._model_guesses)

    def stepped(self, planned: Planned, step: TimedStep) -> None:
        self._learn()
        n_asked, self._n_asked = max(1, self._n_asked), 0
        if self._n_passed > ALL_OF and self._n_passed % ONE_OF:
            return
        if self._inline and planned.spent_s:
            plain_s = self.pricing.costs.curve(step.n_cells)[min(step.n_sessions, self._policy.max_rows)]
            usual = step._replace(decode_s=self.pricing.usual_s(step))
            if self.groups:
                self.groups.drafted(step.n_sessions, self._inline.stepped(usual, planned.spent_s, plain_s))
        self._late = planned, step, self._n_passed, n_asked
        if not self._policy.overlaps:
            self._learn()

    def before(self) -> None:
        if self._remote:
            self._remote.flush()

    def meanwhile(self) -> None:
        self.before()
        self._lookups.index(self.pricing.plain_s)
        self._learn()
        self._drain(self._n_active)
        self._ahead = True
        if self._inline:
            self._inline.watch(self._sessions)

    def _learn(self) -> None:
        """From the latest step, if that has not been done: what steps cost, and which sources pay."""
        if self._late is None:
            return
        (planned, step, n_passed, n_asked), self._late = self._late, None
        calm = self.groups is None or self.groups.calm
        self.pricing.observe(planned, step, calm=calm)
        lookups = self._lookups if self._policy.lookup else None
        looked_s = lookups.taken_s(step, planned.spent_s, n_passed, n_asked) if lookups else 0.0
        charge = self._weighing.stepped(planned, step, looked_s, calm=calm, n_asked=n_asked)
        if self.groups:
            self.groups.stepped(step, charge)

    def close(self, session: int, *, keep: bool) -> None:
        if (speculated := self._sessions.pop(session, None)) is None:
            return
        self._n_expected -= speculated.prediction is not None
        self._lookups.close(speculated)
        if self._inline:
            self._inline.inline.close(session, keep=keep)
        if self._remote:
            self._remote.close(speculated, keep=keep)

    def overlap(self, work: Callable[[], None]) -> None:
        """Call `work` whenever a draft model in this process leaves a moment for it."""
        if self._inline:
            self._inline.inline.overlap(work)

    def drafters(self) -> list[DrafterRecord]:
        """Everybody present on the bus. Safe from any thread."""
        return self._remote.drafters() if self._remote else []

    @property
    def _model_guesses(self) -> bool:
        """Whether the draft model in the lead may guess, if there is one."""
        return self.groups is None or self.groups.model_guesses

    def _is_stable(self, ask: Ask) -> bool:
        """Whether the session is width-stable: alone, in one width, so that guesses are free."""
        return self._sessions[ask.session].session.bounds.exactness == "width-stable"

    def _may_pad(self, asks: Sequence[Ask], n_rows: int) -> bool:
        """Whether the step may be padded to one width: where that can pay, without rows of other sessions,
        and not while all sources rest, since plain steps must take their usual time then."""
        return (
            self.pricing.widths.pays
            and self.groups is not None
            and not self.groups.all_rest
            and not self._policy.by_rejection
            and n_rows == len(asks)
        )

    def _draft(self, inline: Synchronous, asks: Sequence[Ask], price: StepPrice, least: float) -> float:
        """Have the draft model guess for sessions with too few guesses. Returns the seconds that took. least:
        path probability of guesses that count."""
        wanting = [ask for ask in asks if ask.limit > 0 and not self._sessions[ask.session].balance.resting]
        seconds = price.seconds
        if self._policy.gate and not self._policy.by_rejection:
            offers = [self._offer(ask, least).probabilities for ask in wanting]
            wanting = [
                ask
                for ask, offer in zip(wanting, offers, strict=True)
                if not inline.is_needless(ask, self._sessions[ask.session], offer, price, len(offers))
            ]
        if self._policy.again and wanting:
            rates = [self._sessions[ask.session].acceptance.mean(inline.inline.source) for ask in wanting]
            acceptance, n_tail = sum(rates) / len(rates), self._policy.n_tail
            seconds = with_losses(seconds, price.n_rows, len(asks), acceptance, n_tail)
        return inline.draft(wanting, self._sessions, price.n_rows, len(asks), seconds, price.rate)

    def _offer(self, ask: Ask, least: float) -> Proposal:
        """The session's guesses, best first, as long as their path has probability `least`."""
        speculated = self._sessions[ask.session]
        tree = speculated.tree
        if not tree.n_below:
            return NOTHING
        bounds = speculated.session.bounds
        sources = None if bounds.drafters is None else speculated.allows
        leaves = 1 if bounds.exactness == "width-stable" else self._policy.leaves
        wanted = OfferBounds(ask.limit, leaves, max(bounds.p_min, least), sources, ask.allows)
        return tree.offer(speculated.acceptance, wanted)
