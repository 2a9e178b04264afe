"""What the rows of a step cost here, and what the server could do in that time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from server.engine.proposer import Planned, TimedStep
from server.estimators import Median, Ratio, Slope
from server.speculation.gating.aftermath import Aftermath
from server.speculation.gating.costs import StepCosts
from server.speculation.gating.gate import choose
from server.speculation.gating.widths import Offered, Widths

# Of the past, per step: about the last 20 steps count. Off by two: 10, the gate follows single lucky steps;
# 40, it goes by the text before for 40 steps of the next one.
KEEP = 0.95
# Of the past, per step: about the last 100 steps count. Off by two, where steps scatter by as much as a guess
# takes: half, that is known to a seventh instead of a tenth; twice, a change shows after 200 steps.
KEEP_GUESS, FEW = 0.99, 32.0  # steps, too, before which it is not known: a slow first one would bar guesses
# Times the median of the latest steps that what a step takes outside its decode counts at most: the first
# steps of a process take up to 40 times as long. Half: guesses look cheaper than they are; twice: one
# interruption looks like a tenth of a guess's cost for 100 steps.
OUTLIER, LATEST = 4.0, 31
PROBE_SHARE = 0.005  # of the time, for decoding widths that were not measured lately


class StepPrice(NamedTuple):
    """Of a step of n_sessions sessions. n_rows: of the step without guesses. width: rows that it is padded
    to, 0 for none. seconds: of the step by rows, with what it costs later ones; unpadded: if it is not
    padded. rate: tokens per second that its time is worth. guess_s: what a verified guess takes outside
    the decode, in the lead's Python."""

    n_rows: int
    width: int
    seconds: list[float]
    unpadded: list[float]
    rate: float
    n_sessions: int
    guess_s: float = 0.0

    @property
    def plain_s(self) -> float:
        """Seconds of the step without guesses and without padding."""
        return self.unpadded[min(self.n_rows, len(self.unpadded) - 1)]


class Pricing:
    """Learns from every step. costs: seconds of decodes of any width; widths: of those among equal ones."""

    def __init__(self, costs: StepCosts, widths: Widths, *, may_alternate: bool, again: bool) -> None:
        """may_alternate: steps with and without guesses may follow each other. again: a wrong guess has all
        rows of its session evaluated again, so that n_rows says nothing of the rate."""
        self.costs = costs
        self.widths = widths
        self.throughput = Ratio(KEEP)  # tokens per second
        self.plain_rate = 0.0  # tokens per second of steps without guesses, of as many sessions as the latest
        self._outside = Slope(KEEP_GUESS)  # seconds outside decodes by guesses, both of a session
        self._usual_outside = Median(LATEST)
        self._aftermath = Aftermath() if may_alternate and widths.pays else None
        self._again = again
        self._probe_s = 0.0  # time that probing has saved up
        self._n_cells = 0  # in use at the latest step

    def _guess_s(self) -> float:
        """0 until FEW steps are known."""
        return self._outside.value if self._outside.moments[0] >= FEW else 0.0

    def undrafted_s(self, price: StepPrice) -> float:
        """Seconds of this step if nobody drafted, neither for it nor on its cores."""
        return min(price.plain_s, self.costs.alone(price.n_rows, self._n_cells))

    def seconds(self) -> Sequence[float]:
        """Of a decode by rows; empty where padded rows are free."""
        return () if self.widths.pays else self.costs.curve(self._n_cells)

    def step(self, n_sessions: int, n_rows: int, n_cells: int, *, may_pad: bool) -> StepPrice:
        """The price of the next step."""
        self._n_cells = n_cells
        unpadded = self.costs.curve(n_cells)
        if self._aftermath and n_rows == n_sessions:
            unpadded = self._aftermath.charged(unpadded, n_rows)
        width = self.widths.width(n_rows) if may_pad else 0
        seconds = self.widths.curve(width) if width else unpadded
        rate = self._rate(seconds, n_sessions if self._again else n_rows)
        return StepPrice(n_rows, width, seconds, unpadded, rate, n_sessions, self._guess_s())

    def of_guess(self, price: StepPrice, n: int) -> float:
        """Tokens that plain steps would make in the time of each of n guesses."""
        plain_s = self.widths.steady.get(price.n_rows, price.plain_s)
        more_s = price.seconds[min(price.n_rows + n, len(price.seconds) - 1)] - plain_s
        return price.n_sessions * max(0.0, more_s) / (plain_s * max(1, n)) if plain_s else 0.0

    def _rate(self, seconds: Sequence[float], n_rows: int) -> float:
        """Tokens per second: of late, and at least those of plain steps."""
        plain_s = min(seconds[min(n_rows, len(seconds) - 1)], self.widths.steady.get(n_rows, math.inf))
        return max(self.throughput.value, n_rows / plain_s if plain_s else 0.0)

    def chosen(
        self,
        price: StepPrice,
        offers: Sequence[Sequence[float]],
        again: Sequence[int] = (),
        n_tail: int = 0,
    ) -> list[int]:
        """How many guesses of each offer pay; all, now and then, to time a width. offers: probabilities.
        again, n_tail: as choose() takes them."""
        if (lost := price.rate * price.guess_s) and not again:
            offers = [[probability - lost for probability in offer] for offer in offers]
        counts = choose(price.seconds, price.n_rows, offers, price.rate, again, n_tail)
        chosen = price.n_rows + sum(counts)
        offered = min(price.n_rows + sum(map(len, offers)), len(price.seconds) - 1)
        if chosen < offered and self.costs.is_stale(offered, self._n_cells):
            extra_s = price.seconds[offered] - price.seconds[chosen]
            if self._probe_s >= extra_s:
                self._probe_s -= extra_s
                return list(map(len, offers))
        return counts

    def decided(self, price: StepPrice, offers: Sequence[Sequence[float]], counts: Sequence[int]) -> None:
        """These guesses of the offers are verified. Would any be if the step cost later ones nothing?"""
        if self._aftermath is None:
            return
        pays = any(counts)
        if not pays and any(offers):
            seconds = self.costs.curve(self._n_cells)
            rate = self._rate(seconds, price.n_rows)
            pays = any(choose(seconds, price.n_rows, offers, rate))
        self._aftermath.would_pay(pays)

    def padded(self, n_sessions: int, price: StepPrice, offers: Sequence[Offered]) -> None:
        """Count what this step could have gained at each width. offers: what was offered, and what would be
        if rows were free."""
        most = max(offers, key=lambda offer: sum(offer.probabilities) - price.rate * offer.seconds)
        self.widths.observe(n_sessions, offers[0], price.unpadded, most)

    def observe(self, planned: Planned, step: TimedStep) -> None:
        """A step without prompts."""
        usual_s = step.decode_s
        if self._aftermath:
            plain = not any(planned.proposals)
            usual_s = self._aftermath.usual(step.n_rows, step.decode_s, plain=plain)
        if step.n_rows == planned.width:
            self.widths.timed(step.n_rows, step.decode_s)
        elif not planned.width:
            self.costs.observe(step.n_rows, step.n_cells, usual_s)
        curve = self.costs.curve(step.n_cells)
        plain_s = self.widths.steady.get(step.n_sessions, curve[min(step.n_sessions, len(curve) - 1)])
        self.plain_rate = step.n_sessions / plain_s if plain_s else 0.0
        self.throughput.observe(step.n_tokens, step.step_s)
        n_guesses, outside_s = sum(map(len, planned.proposals)), step.step_s - step.decode_s - planned.spent_s
        each_s = max(0.0, outside_s) / step.n_sessions
        self._usual_outside.observe(each_s)
        if self._usual_outside.count > 2:
            each_s = min(each_s, OUTLIER * self._usual_outside.value)
            self._outside.observe(n_guesses / step.n_sessions, each_s)
        self._probe_s += PROBE_SHARE * step.step_s
