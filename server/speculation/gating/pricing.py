"""What the rows of a step cost here, and what the server could do in that time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

from server.engine.proposer import Planned, TimedStep
from server.estimators import Median, Ratio, Slope
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.gate import choose
from server.speculation.gating.widths import PLAIN, Widths

# Of the past, per step: about the last 20 steps count. Off by two: 10, the gate follows single lucky steps;
# 40, it goes by the text before for 40 steps of the next one.
KEEP = 0.95
# Of the past, per step: about the last 100 steps count. Off by two, where steps scatter by as much as a guess
# takes: half, that is known to a seventh instead of a tenth; twice, a change shows after 200 steps.
KEEP_GUESS, FEW = 0.99, 32.0  # steps, too, before which it is not known: a slow first one would bar guesses
# Times the usual. What a step takes outside its decode counts as that at most, and a decode that takes longer
# is not charged to guesses: the first steps of a process take up to 40 times as long. Half: guesses look
# cheaper than they are; twice: one interruption looks like a tenth of a guess's cost for 100 steps.
OUTLIER, LATEST = 4.0, 31
KNOWN = (
    5  # decodes beside a drafter until it counts that they are slower. Half: one disturbed step counts whole
)


class StepPrice(NamedTuple):
    """Of a step of n_sessions sessions. n_rows: of the step without guesses. width: rows that it is padded
    to, 0 for none. seconds: of the step by rows, with what it costs later ones; plain_s: without guesses and
    without padding. rate: tokens per second that its time is worth. guess_s: what a verified guess takes
    outside the decode, in the lead's Python. change_s: what it costs to come to this width, and back,
    where that is bounded."""

    n_rows: int
    width: int
    seconds: list[float]
    plain_s: float
    rate: float
    n_sessions: int
    guess_s: float = 0.0
    change_s: float = 0.0

    @property
    def lost(self) -> float:
        """Tokens that are made elsewhere in the time that a verified guess takes in Python."""
        return self.rate * self.guess_s


class Pricing:
    """Learns from every step. costs: seconds of decodes of any width; calm: while no drafter works on the
    lead's cores; widths: of those among equal ones."""

    def __init__(self, costs: StepCosts, widths: Widths, *, again: bool) -> None:
        """again: a wrong guess has all rows of its session evaluated again, so that n_rows says nothing of
        the rate."""
        self.costs = self.calm = costs  # one until a drafter works there
        self.widths = widths
        self.throughput = Ratio(KEEP)  # tokens per second
        # seconds of a step without guesses, of as many sessions as the latest, and its tokens per second
        self.plain_s = self.plain_rate = 0.0
        self._outside = Slope(KEEP_GUESS)  # seconds outside decodes by guesses, both of a session
        self._usual_outside = Median(LATEST)
        self._crowding = Median(
            LATEST
        )  # time of decodes beside a drafter on the lead's cores, by that of calm ones
        self._again = again
        self._n_cells = 0  # in use at the latest step

    def _guess_s(self) -> float:
        """0 until FEW steps are known."""
        return self._outside.value if self._outside.moments[0] >= FEW else 0.0

    def undrafted_s(self, price: StepPrice) -> float:
        """Seconds of this step if nobody drafted, neither for it nor on its cores."""
        return min(price.plain_s, self.calm_s(price.n_rows, self._n_cells))

    def calm_s(self, n_rows: int, n_cells: int) -> float:
        """Seconds of a decode while no drafter works on the lead's cores; in a context that had no such step,
        longer by as much as others are. Infinite where none is known."""
        curve = self.costs.curve(n_cells)
        rows = min(n_rows, len(curve) - 1)
        if self.calm is self.costs:
            return curve[rows] or math.inf
        calm_s, shortest_s = self.calm.curve(n_cells)[rows], self.costs.curve(0)[rows]
        if shortest_s and not self.calm.has_seen(n_cells):
            calm_s *= curve[rows] / shortest_s
        return calm_s or math.inf

    @property
    def crowding(self) -> float:
        """Time of decodes beside a drafter on the lead's cores, by that of calm ones. 1: it is not known."""
        return max(1.0, self._crowding.value) if self._crowding.count >= KNOWN else 1.0

    def seconds(self, n_rows: int) -> Sequence[float]:
        """Of a decode by rows, where more than n_rows rows are padded to one of a few widths if that pays."""
        seconds = self.costs.curve(self._n_cells)
        if self.widths.pays:
            seconds = seconds[: n_rows + 1]
            for width, taken_s in self.widths.steady.items():
                seconds += [taken_s] * (width + 1 - len(seconds))
        return seconds

    def step(
        self,
        n_sessions: int,
        n_rows: int,
        n_cells: int,
        *,
        may_pad: bool,
        allowance: float = math.inf,
    ) -> StepPrice:
        """The price of the next step. may_pad: it may have one of a few widths; allowance: tokens that this
        may cost each session, the way to the width and back included."""
        self._n_cells = n_cells
        seconds = self.costs.curve(n_cells)
        plain_s = seconds[min(n_rows, len(seconds) - 1)]
        if may_pad:
            plain_s = self.widths.steady.get(n_rows, plain_s)
        rate = self._rate(plain_s, n_sessions if self._again else n_rows)
        if may_pad:
            self.widths.most_s = allowance * plain_s if plain_s else math.inf
            self.widths.use(n_cells)
            seconds = self.widths.seconds(n_rows, plain_s)
        return StepPrice(n_rows, PLAIN, seconds, plain_s, rate, n_sessions, self._guess_s())

    def padded(self, price: StepPrice, probabilities: Sequence[float]) -> StepPrice:
        """The price of this step in the width that is best for it. probabilities: of the guesses, best
        first."""
        worth = [probability - price.lost for probability in probabilities if probability > price.lost]
        width = self.widths.choose(price.n_rows, price.plain_s, worth, price.rate)
        if width == PLAIN:
            return price._replace(seconds=[price.plain_s] * (price.n_rows + 1))
        seconds = [self.widths.steady[width]] * (width + 1)
        return price._replace(
            width=width, seconds=seconds, change_s=self.widths.charge_s(width, price.n_rows)
        )

    def of_guess(self, price: StepPrice, n: int) -> float:
        """Tokens that plain steps would make in the time of each of n guesses, with its share of change_s."""
        plain_s = price.plain_s
        more_s = price.change_s + price.seconds[min(price.n_rows + n, len(price.seconds) - 1)] - plain_s
        return price.n_sessions * max(0.0, more_s) / (plain_s * max(1, n)) if plain_s else 0.0

    def of_row_again(self, price: StepPrice) -> float:
        """Tokens that plain steps would make in the time of each row that a session has beyond one, since a
        guess before was wrong."""
        single_s, n_more = (
            price.seconds[min(price.n_sessions, len(price.seconds) - 1)],
            price.n_rows - price.n_sessions,
        )
        return (
            price.n_sessions * max(0.0, price.plain_s - single_s) / (single_s * n_more)
            if single_s and n_more
            else 0.0
        )

    def usual_s(self, step: TimedStep) -> float:
        """Seconds of the step's decode; of others if it took more than OUTLIER times as long: a process that
        was stopped for a minute says nothing of what guesses cost."""
        curve = self.costs.curve(step.n_cells)
        usual_s = curve[min(step.n_rows, len(curve) - 1)]
        return usual_s if 0.0 < OUTLIER * usual_s < step.decode_s else step.decode_s

    def row_s(self, n_rows: int) -> float:
        """As StepCosts.row_s, for a step like the latest one."""
        return self.costs.row_s(n_rows, self._n_cells)

    def _rate(self, plain_s: float, n_rows: int) -> float:
        """Tokens per second: of late, and at least those of plain steps."""
        return max(self.throughput.value, n_rows / plain_s if plain_s else 0.0)

    def chosen(
        self,
        price: StepPrice,
        offers: Sequence[Sequence[float]],
        again: Sequence[int] = (),
        n_tail: int = 0,
    ) -> list[int]:
        """How many guesses of each offer pay. offers: probabilities. again, n_tail: as choose() takes
        them."""
        if (lost := price.lost) and not again:
            offers = [[probability - lost for probability in offer] for offer in offers]
        return choose(price.seconds, price.n_rows, offers, price.rate, again, n_tail)

    def observe(self, planned: Planned, step: TimedStep, *, calm: bool | None = True) -> None:
        """A step without prompts. calm: no drafter worked on the lead's cores; None: one may have."""
        self._n_cells = step.n_cells
        if calm is False and self.calm is self.costs:
            self.calm = deepcopy(self.costs)
        if not planned.width and (not self.widths.pays or self.widths.is_settled(step.n_rows)):
            self.costs.observe(step.n_rows, step.n_cells, step.decode_s)
            if calm and self.calm is not self.costs:
                self.calm.observe(step.n_rows, step.n_cells, step.decode_s)
            elif calm is False and (calm_s := self.calm.measured(step.n_rows, step.n_cells)):
                self._crowding.observe(step.decode_s / calm_s)
        if self.widths.pays:
            self.widths.stepped(step.n_rows, step.decode_s)
        curve = self.costs.last_curve(step.n_cells)
        plain_s = self.widths.steady.get(step.n_sessions, curve[min(step.n_sessions, len(curve) - 1)])
        self.plain_s, self.plain_rate = plain_s, step.n_sessions / plain_s if plain_s else 0.0
        self.throughput.observe(step.n_tokens, step.step_s)
        n_guesses, outside_s = sum(map(len, planned.proposals)), step.step_s - step.decode_s - planned.spent_s
        each_s = max(0.0, outside_s) / step.n_sessions
        self._usual_outside.observe(each_s)
        if self._usual_outside.count > 2:
            each_s = min(each_s, OUTLIER * self._usual_outside.value)
            self._outside.observe(n_guesses / step.n_sessions, each_s)
