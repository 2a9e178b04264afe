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
from server.estimators import Ratio
from server.speculation.gating.acceptance import Acceptance
from server.speculation.gating.aftermath import Aftermath
from server.speculation.gating.balance import Overhead
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.gate import choose, with_losses
from server.speculation.gating.tree import OfferBounds
from server.speculation.gating.widths import Offered, Widths
from server.speculation.groups import LOOKUP, MODEL, Groups
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.sources.lookup import Lookup, LookupPool
from server.speculation.sources.remote import DrafterRecord, RemoteDrafters
from server.speculation.sources.synchronous import SOURCE, Synchronous
from server.speculation.speculated import Speculated

GRAMMAR = "grammar"
# Of the past, per step: about the last 20 steps count. Off by two: 10, the gate follows single lucky steps;
# 40, it goes by the text before for 40 steps of the next one.
KEEP = 0.95
INDEXED = 64  # tokens that a step adds to a lookup's index at most: an eighth of a millisecond
PROBE_SHARE = 0.005  # of the time, for decoding widths that were not measured lately
MAX_POOLS = 16  # salts whose texts are remembered, of up to 30 MB each


class Speculator(Proposer):
    """Sessions without any source cost a few microseconds a step."""

    def __init__(
        self,
        policy: Policy,
        *,
        remote: RemoteDrafters | None = None,
        inline: DraftModel | None = None,
        costs: StepCosts | None = None,
        widths: Widths | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy = policy
        self.acceptance = remote.acceptance if remote else Acceptance()
        self._remote = remote
        self._inline = Synchronous(inline, policy, clock) if inline else None
        self._clock = clock
        self.costs = costs or StepCosts(policy.max_rows)
        self.widths = widths or Widths({})
        self._aftermath = Aftermath()
        self._overhead = Overhead()
        self.throughput = Ratio(KEEP)  # tokens per second
        self.groups = self._make_groups() if policy.gate else None
        self._pools: dict[str, LookupPool] = {}  # by salt, the one used last at the end
        self._sessions: dict[int, Speculated] = {}
        self._wire_ids = itertools.count(secrets.randbits(48) << 16)
        self._drafting_s = 0.0  # by the draft model since the last step without prompts
        self._probe_s = 0.0  # time that probing has saved up
        self._n_cells = 0  # in use at the latest step

    # -- Proposer ----------------------------------------

    def drain(self, n_active: int) -> None:
        if self._remote:
            self._remote.drain()
        if self.groups:
            self.groups.serve(n_active, self._free_curve)
        if self._may_guess(LOOKUP):
            for speculated in self._sessions.values():
                speculated.index(INDEXED)

    def open(self, session: OpenedSession) -> None:
        lookup = Lookup(pool=self._pool(session.bounds.salt)) if self._policy.lookup else None
        speculated = Speculated(next(self._wire_ids), session, Acceptance(self.acceptance), lookup)
        self._sessions[session.id] = speculated
        if self._remote:
            self._remote.open(speculated)

    def propose(self, asks: Sequence[Ask], n_rows: int, n_cells: int) -> Planned:
        spent_s, width, self._n_cells = 0.0, 0, n_cells
        curve = self.costs.curve(n_cells)
        if self._policy.gate and not self.costs.knows(n_rows) and not self._is_stable(asks[0]):
            return Planned([NOTHING] * len(asks))  # what a plain step costs has to be known first
        if self.groups and self.groups.all_rest and not any(self._is_told(ask) for ask in asks):
            return Planned([NOTHING] * len(asks))
        alone = self._charged(curve, asks, n_rows)
        if self._may_pad(asks, n_rows):
            width = self.widths.width(n_rows)
        curve = self.widths.curve(width) if width else alone
        rate = self._rate(curve, asks, n_rows)
        wanting = [ask for ask in asks if ask.limit > 0]
        for ask in wanting:
            speculated = self._sessions[ask.session]
            speculated.expect(ask.limit)
            if self._may_guess(LOOKUP) and speculated.look_up(ask.limit) and self.groups:
                self.groups.heard(LOOKUP)
            speculated.tree.guess(GRAMMAR, ask.forced, [255] * len(ask.forced))
        if self._inline and wanting and self._may_guess(MODEL):
            spent_s = self._draft(self._inline, asks, n_rows, curve, rate)
            self._drafting_s += spent_s
            if self.groups and spent_s:
                self.groups.heard(MODEL)
            if self._policy.by_rejection:
                return Planned([self._inline.chain(ask.session) for ask in asks], width, spent_s)
        guessed = any(self._sessions[ask.session].tree.n_below for ask in wanting)
        offers = [self._offer(ask) for ask in asks] if guessed else [NOTHING] * len(asks)
        if self._may_pad(asks, n_rows):
            merged = sorted((p for offer in offers for p in offer.probabilities), reverse=True)
            self._learn_width(asks, Offered(merged, spent_s), alone, rate, width)
        counts = self._chosen(asks, curve, n_rows, rate, offers) if guessed else [0] * len(asks)
        if self._has_aftermath:
            self._aftermath.would_pay(guessed and (any(counts) or self._would_pay(asks, n_rows, offers)))
        if not guessed:
            return Planned(offers, width, spent_s)
        last = min(n_rows + sum(counts), len(curve) - 1)
        lost = rate * (curve[last] - curve[min(n_rows, last)]) / max(1, sum(counts))
        return Planned(self._taken(asks, offers, counts, lost), width, spent_s)

    def _taken(
        self, asks: Sequence[Ask], offers: list[Proposal], counts: list[int], lost: float
    ) -> list[Proposal]:
        """The guesses that are verified. lost: tokens that the server could make in the time of each."""
        proposals: list[Proposal] = []
        for ask, offer, n in zip(asks, offers, counts, strict=True):
            speculated = self._sessions[ask.session]
            taken = offer.take(n if n >= speculated.session.bounds.n_min else 0)
            if speculated.drafters:
                speculated.n_lost = lost * sum(source in speculated.drafters for source in taken.sources)
            proposals.append(taken)
        return proposals

    def committed(self, session: int, n: int, tally: CountsBySource) -> None:
        speculated = self._sessions[session]
        tokens = tuple(speculated.session.tokens[-n:])
        base = speculated.tree.position
        speculated.tree.commit(tokens, speculated.acceptance)
        if speculated.prediction is not None:
            speculated.prediction.extend(tokens)
        if self._may_guess(LOOKUP):
            speculated.index(INDEXED)
        if self._remote:
            self._remote.committed(speculated, base, tokens)
            self._remote.count(tally)
            if self._policy.gate:
                self._weigh(self._remote, speculated, tally)

    def stepped(self, planned: Planned, step: TimedStep) -> None:
        usual_s, plain = step.decode_s, not any(planned.proposals)
        if self._has_aftermath:
            usual_s = self._aftermath.usual(step.n_rows, step.decode_s, plain=plain)
        if step.n_rows == planned.width:
            self.widths.timed(step.n_rows, step.decode_s)
        elif not planned.width:
            self.costs.observe(step.n_rows, step.n_cells, usual_s)
        self.throughput.observe(step.n_tokens, step.step_s)
        self._probe_s += PROBE_SHARE * step.step_s
        if self._remote:
            outside_s = max(0.0, step.step_s - step.decode_s - planned.spent_s) / step.n_sessions
            self._overhead.observe(outside_s, told=self._remote.drafting, guessing=not plain)
        if self.groups:
            late_s = self._drafting_s - planned.spent_s  # in steps with prompts, of which nobody is told
            self.groups.stepped(step._replace(step_s=step.step_s + late_s) if late_s else step)
            self._drafting_s = 0.0

    def close(self, session: int, *, keep: bool) -> None:
        speculated = self._sessions.pop(session, None)
        if speculated is None:
            return
        if speculated.lookup is not None:
            self._pool(speculated.session.bounds.salt).add(speculated.reply)
        if self._inline:
            self._inline.inline.close(session, keep=keep)
        if self._remote:
            self._remote.close(speculated, keep=keep)

    def overlap(self, work: Callable[[], None]) -> None:
        """Call `work` whenever a draft model in this process leaves a moment for it."""
        if self._inline:
            self._inline.inline.overlap(work)

    # -- what others may know ----------------------------------------

    def drafters(self) -> list[DrafterRecord]:
        """Everybody present on the bus. Safe from any thread."""
        return self._remote.drafters() if self._remote else []

    # -- decisions ----------------------------------------

    def _make_groups(self) -> Groups:
        inside = [MODEL] if self._inline else []
        return Groups(self._remote, *inside, *([LOOKUP] if self._policy.lookup else []))

    def _free_curve(self) -> Sequence[float]:
        """Seconds of a decode by rows; empty where padded rows are free."""
        return () if self.widths.pays else self.costs.curve(self._n_cells)

    def _may_guess(self, group: str) -> bool:
        return self.groups is None or self.groups.guesses(group)

    def _is_stable(self, ask: Ask) -> bool:
        """Whether the session is width-stable: alone, and padded to one width, so that guesses are free."""
        return self._sessions[ask.session].session.bounds.exactness == "width-stable"

    def _is_told(self, ask: Ask) -> bool:
        """Whether a grammar or the client says what comes next."""
        return bool(ask.forced) or self._sessions[ask.session].prediction is not None

    def _pool(self, salt: str) -> LookupPool:
        """The other texts that lookups of this salt may know."""
        pool = self._pools[salt] = self._pools.pop(salt, None) or LookupPool()
        if len(self._pools) > MAX_POOLS:
            del self._pools[next(iter(self._pools))]
        return pool

    def _may_pad(self, asks: Sequence[Ask], n_rows: int) -> bool:
        """Whether the step may be padded to one width: where that can pay, without rows of other sessions,
        and not while all sources rest, since plain steps must take their usual time then."""
        return (
            self.widths.pays
            and self.groups is not None
            and not self.groups.all_rest
            and not self._policy.by_rejection
            and n_rows == len(asks)
            and not self._is_stable(asks[0])
        )

    def _charged(self, curve: list[float], asks: Sequence[Ask], n_rows: int) -> list[float]:
        """Seconds of steps of any width, their aftermath included."""
        if not self._has_aftermath or n_rows != len(asks):
            return curve
        return self._aftermath.charged(curve, n_rows)

    @property
    def _has_aftermath(self) -> bool:
        """Not with a draft model in the lead: it guesses in every step or in none."""
        return self.widths.pays and not self._inline

    def _learn_width(
        self, asks: Sequence[Ask], offered: Offered, curve: list[float], rate: float, width: int
    ) -> None:
        """Count what this step could have gained at each width. Where rows are dear the draft model stopped
        earlier than it would with free rows."""
        options = [offered]
        if self._inline and width <= len(asks):
            options.append(self._inline.outlook(asks, self._sessions, rate))
        padded = max(options, key=lambda option: sum(option.probabilities) - rate * option.seconds)
        self.widths.observe(len(asks), offered, curve, padded)

    def _draft(
        self, inline: Synchronous, asks: Sequence[Ask], n_rows: int, curve: list[float], rate: float
    ) -> float:
        """Have the draft model guess for sessions with too few guesses. Returns the seconds that took."""
        wanting = [ask for ask in asks if ask.limit > 0]
        if self._policy.gate and not self._policy.by_rejection:
            wanting = [ask for ask in wanting if not self._is_served(inline, ask)]
        if self._policy.again and wanting:
            rates = [self._sessions[ask.session].acceptance.mean(SOURCE) for ask in wanting]
            curve = with_losses(curve, n_rows, len(asks), sum(rates) / len(rates))
        return inline.draft(wanting, self._sessions, n_rows, curve, rate)

    def _is_served(self, inline: Synchronous, ask: Ask) -> bool:
        """Whether the session's other guesses are worth more than the draft model's would be."""
        speculated = self._sessions[ask.session]
        if not speculated.tree.n_below:
            return False
        return sum(self._offer(ask).probabilities) >= inline.expected(ask, speculated)

    def _rate(self, curve: list[float], asks: Sequence[Ask], n_rows: int) -> float:
        """Tokens per second: of late, and at least those of plain steps."""
        n_rows = len(asks) if self._policy.again else n_rows
        plain_s = min(curve[min(n_rows, len(curve) - 1)], self.widths.steady.get(n_rows, math.inf))
        return max(self.throughput.value, n_rows / plain_s if plain_s else 0.0)

    def _offer(self, ask: Ask) -> Proposal:
        speculated = self._sessions[ask.session]
        bounds = speculated.session.bounds
        sources = None if bounds.drafters is None else speculated.allows
        leaves = 1 if bounds.exactness == "width-stable" else self._policy.leaves
        wanted = OfferBounds(ask.limit, leaves, bounds.p_min, sources, ask.allows)
        return speculated.tree.offer(speculated.acceptance, wanted)

    def _choose(
        self, asks: Sequence[Ask], curve: list[float], n_rows: int, rate: float, offers: list[Proposal]
    ) -> list[int]:
        """How many of each offer pay."""
        again = [ask.n_pending for ask in asks] if self._policy.again else []
        return choose(curve, n_rows, [offer.probabilities for offer in offers], rate, again)

    def _weigh(self, remote: RemoteDrafters, speculated: Speculated, tally: CountsBySource) -> None:
        """What the session's drafters brought it in a step, beside what they cost."""
        n_right = sum(n for source, (_, n) in tally.items() if source in speculated.drafters) if tally else 0
        overhead_s = self._overhead.seconds(guessing=bool(tally))
        remote.weigh(speculated, n_right, speculated.n_lost + overhead_s * self.throughput.value)
        speculated.n_lost = 0.0

    def _would_pay(self, asks: Sequence[Ask], n_rows: int, offers: list[Proposal]) -> bool:
        """Whether any guess would pay if steps had no aftermath."""
        curve = self.costs.curve(self._n_cells)
        return any(self._choose(asks, curve, n_rows, self._rate(curve, asks, n_rows), offers))

    def _chosen(
        self, asks: Sequence[Ask], curve: list[float], n_rows: int, rate: float, offers: list[Proposal]
    ) -> list[int]:
        """How many of each offer are verified."""
        if not self._policy.gate or self._is_stable(asks[0]):
            return [len(offer) for offer in offers]
        counts = self._choose(asks, curve, n_rows, rate, offers)
        chosen = n_rows + sum(counts)
        offered = min(n_rows + sum(len(offer) for offer in offers), len(curve) - 1)
        if chosen < offered and self.costs.is_stale(offered, self._n_cells):
            extra_s = curve[offered] - curve[chosen]
            if self._probe_s >= extra_s:  # that width was not measured lately
                self._probe_s -= extra_s
                return [len(offer) for offer in offers]
        return counts
