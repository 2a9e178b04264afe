"""Time steps of a few widths, for machines where a change of width costs more than rows do. Pure.

A width is the number of a step's rows, padding included. On such a machine (server/llama/shapes.py) the first
step of another width rebuilds the GPU's graph and the second step records it, unless a graph of this width
and about this number of cells exists (graph_keys.py). Only later steps take their usual time.

So steps are padded to one of a few widths: the one with the largest gain, less the cost of changing to it.
The cost is spread over the number of steps for which the width is likely to stay best. It includes a later
change back to undrafted steps, which are not padded, weighted by its probability, since a prompt may come
first. After a step of another shape (with rows of a prompt, or another number of sessions) an undrafted step
is a change of width as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from server.estimators import Mean
from server.llama.backend import CELLS_STEP
from server.speculation.gain import best, reached

# Weight of a step in the times of widths that it does not measure: they return to their first values. A time
# that was twice too long is within 10 percent after 230 steps. 0.005: 460; 0.02: 120, so that a slow width is
# tried twice as often.
RECOVERY = 0.01
SETTLING = 2  # steps of a width before the usual time: the first builds the graph, the second records it
# Latest steps of one width, or changes of width, that count. Half: a third of a step's scatter remains
# instead of a quarter, so that widths flicker; twice: nine tenths of a change are known after 46 steps of a
# width, not 23 (simulated).
WIDTH_WINDOW = 10
SMOOTHING = 1 / WIDTH_WINDOW  # weight of a measured time
# Weight, in runs, of the first assumption that a run has a single step. 1 or 4: new leads make as many tokens
# per second within 2 percent (30 prompts on the emulated GPUs of benchmarks.graphs).
FEW_RUNS = 2
PLAIN = 0  # the width of steps without guesses, which are not padded


class NextShape(NamedTuple):
    """The next step, for which a width (number of rows, padding included) is to be chosen."""

    n_rows: int  # rows without guesses
    undrafted_s: float  # seconds of the step without guesses, after steps of the same width
    rows_before: int  # padded rows of the step before; 0: it had another shape
    n_cells: int  # cells of the KV cache in use
    most_s: float = math.inf  # maximum extra seconds over an undrafted step, changes of width included


class ShapeTimes:
    """Seconds of steps by width, and of a change of width."""

    def __init__(self, steady: Mapping[int, float], change_s: float = 0.0) -> None:
        """Begin with the times measured at the start.

        Args:
            steady: Seconds, by width, of a decode that follows decodes of the same width; empty: padding
                does not pay.
            change_s: Extra seconds of the first decode of a width after decodes of another.
        """
        self.steady = dict(sorted(steady.items()))
        self._at_first = dict(self.steady)
        # extra seconds of the first and second step after a change, by whether a graph of it is recorded
        self._change = {
            recorded: [Mean(change_s, 2, WIDTH_WINDOW) for _ in range(SETTLING)] for recorded in (True, False)
        }
        self._recorded: set[tuple[int, int]] = set()  # recorded graphs: rows, n_cells // CELLS_STEP
        self._was_recorded = False  # the latest change was to a graph recorded before
        # mean number of steps in a row for which a wider width is best (True), or for which none is (False)
        self._runs = {wider: Mean(1.0, FEW_RUNS, WIDTH_WINDOW) for wider in (True, False)}
        self._is_wider, self._n_in_run = False, 0  # the run so far
        self._returns = Mean(1.0, FEW_RUNS, WIDTH_WINDOW)  # share of wider runs that plain steps follow
        self._rows = [0] * SETTLING  # rows of the latest steps, last one first

    @property
    def pays(self) -> bool:
        """True if padding can pay on this machine."""
        return bool(self.steady)

    def is_steady(self, n_rows: int) -> bool:
        """Return True if the latest steps had n_rows rows, so that such a step now takes its usual time."""
        return all(rows == n_rows for rows in self._rows)

    # -- choosing

    def seconds(self, step: NextShape) -> list[float]:
        """Return the seconds of the next step by rows, with its share of the cost of a change of width.

        A draft model in the lead decides by these seconds how much to guess. If a wider step takes less time
        than n rows, entry n is the time of the wider step, since the n rows are padded to its width.
        """
        wider = self._wider(step)
        shares = self._shares_s([PLAIN, *wider], step, self._is_wider, self._n_in_run)
        n_rows, undrafted_s = step.n_rows, step.undrafted_s
        each = [(n_rows, undrafted_s + shares[PLAIN]), *[(w, s + shares[w]) for w, s in wider.items()]]
        seconds, least = list[float](), each[-1][1]
        for i in range(len(each) - 1, -1, -1):
            least = min(least, each[i][1])
            each[i] = each[i][0], least
        for width, taken_s in each:
            seconds += [taken_s] * (width + 1 - len(seconds))
        return seconds

    def choose(self, step: NextShape, probabilities: Sequence[float], rate: float) -> tuple[int, bool]:
        """Choose the width of the next step: the number of its rows, padding included.

        Args:
            step: The step.
            probabilities: For each guess, best first: the probability that it is reached and right.
            rate: Price of time, in tokens per second.

        Returns:
            The width, or PLAIN for a step without guesses and padding; and whether a wider step is best when
            the costs of changes of width are ignored.
        """
        n_rows, wider = step.n_rows, self._wider(step)
        widths, seconds = [PLAIN, *wider], [step.undrafted_s, *wider.values()]
        tokens = [float(n_rows), *[n_rows + sum(probabilities[: w - n_rows]) for w in wider]]
        rate = min(rate, reached(tokens, seconds))
        is_wider = best(tokens, seconds, rate)[0] > 0
        n_in_run = 1 + (self._n_in_run if is_wider == self._is_wider else 0)
        shares = self._shares_s(widths, step, is_wider, n_in_run)
        at, _ = best(tokens, [s + shares[w] for w, s in zip(widths, seconds, strict=True)], rate)
        return widths[at], is_wider

    def stays_plain(self, step: NextShape) -> bool:
        """Return True if a step without guesses should have no padding rows.

        The condition: the previous step had as many rows, and no wider step takes less time.
        """
        own_s = self.steady.get(step.n_rows)
        if own_s is None or step.n_rows != step.rows_before:
            return False
        return not any(s < own_s for width, s in self.steady.items() if width > step.n_rows)

    def charge_s(self, width: int, step: NextShape) -> float:
        """Return how many more seconds a change to this width costs than a change to an undrafted step.

        Return 0.0 if the time of the step is not limited (most_s is infinite).
        """
        return self._beyond_s(width, step) if step.most_s < math.inf else 0.0

    def _wider(self, step: NextShape) -> dict[int, float]:
        """Return seconds by width, for the widths to which this step may be padded within its time limit."""
        longest_s = step.undrafted_s + step.most_s
        return {
            w: s
            for w, s in self.steady.items()
            if w > step.n_rows and (w == step.rows_before or s + self._beyond_s(w, step) <= longest_s)
        }

    def _shares_s(
        self, widths: Iterable[int], step: NextShape, is_wider: bool, n_in_run: int
    ) -> dict[int, float]:
        """Return, by width, how much more a change to it costs than the cheapest change, in seconds per step.

        The cost is divided by the steps of a run: successive steps for which a padded width is best
        (is_wider), or for which none is. A run is assumed to be as long as recent runs of its kind on
        average, but the present run lasts at least n_in_run steps.
        """
        n_steps = {wider: run.value for wider, run in self._runs.items()}
        n_steps[is_wider] = max(n_steps[is_wider], n_in_run)
        ways = {width: self._way_s(width, step) for width in widths}
        least_s = min(ways.values())
        return {width: (way_s - least_s) / n_steps[width != PLAIN] for width, way_s in ways.items()}

    def _way_s(self, width: int, step: NextShape) -> float:
        """Return the extra seconds that a change to `width` costs; 0.0 if the previous step had this width.

        If the previous step was not padded, the expected cost of a change back is included.
        """
        before = step.rows_before
        if (rows := width or step.n_rows) == before:
            return 0.0
        way_s = self._change_s(rows, step.n_cells)
        if width != PLAIN and (before <= step.n_rows or before not in self.steady):
            way_s += self._returns.value * self._change_s(step.n_rows, step.n_cells)
        return way_s

    def _beyond_s(self, width: int, step: NextShape) -> float:
        return max(0.0, self._way_s(width, step) - self._way_s(PLAIN, step))

    def _change_s(self, n_rows: int, n_cells: int) -> float:
        """Return the extra seconds of the first and the second step after a change to n_rows rows."""
        first, second = self._change[(n_rows, n_cells // CELLS_STEP) in self._recorded]
        return first.value + second.value

    # -- learning

    def interrupted(self) -> None:
        """Note a step of another shape, for example with rows of a prompt."""
        self._rows = [0] * SETTLING
        self._end_run(0.0)

    def chosen(self, *, is_wider: bool) -> None:
        """Note whether a wider step or an undrafted one was best, ignoring the cost of a change of width."""
        if is_wider != self._is_wider:
            self._end_run(1.0)
        self._is_wider, self._n_in_run = is_wider, self._n_in_run + 1

    def _end_run(self, followed_by_plain: float) -> None:
        """End the present run (see _shares_s()), and learn its length.

        followed_by_plain: 1.0 if undrafted steps follow, 0.0 if a prompt follows.
        """
        if self._n_in_run:
            self._runs[self._is_wider].observe(self._n_in_run)
            if self._is_wider:
                self._returns.observe(followed_by_plain)
            self._n_in_run = 0

    def observe(self, n_rows: int, n_cells: int, seconds: float) -> None:
        """Learn that a decode of n_rows rows, padding included, with n_cells cells in use, took `seconds`."""
        place = next((i for i, rows in enumerate(self._rows) if rows != n_rows), None)
        self._rows = [n_rows, *self._rows[:-1]]
        shape = n_rows, n_cells // CELLS_STEP
        if place == 0:
            self._was_recorded = shape in self._recorded
        else:
            self._recorded.add(shape)
        known = self.steady.get(n_rows)
        if known is None:
            return
        if place is None:
            self._timed(n_rows, known, seconds)
        else:
            self._change[self._was_recorded][place].observe(min(max(seconds - known, 0.0), known))

    def _timed(self, n_rows: int, known: float, seconds: float) -> None:
        """Learn the seconds of a step that follows steps of the same width.

        The times of other widths move slowly towards what this step suggests. If this width takes more
        seconds than at the lead's start, mostly because of a longer context, other widths are expected to
        take the same number of additional seconds. If it takes fewer, because the machine was busy at the
        start, the times of other widths are expected to shrink in proportion. The times of fewer rows are
        capped, so that one disturbed step does not make a narrow width look slower than a wide one.

        Args:
            n_rows: The width.
            known: The seconds known so far.
            seconds: The seconds of this step.
        """
        now = self.steady[n_rows] = known + SMOOTHING * (min(seconds, 2.0 * known) - known)
        own_first = self._at_first[n_rows]
        for other, first in self._at_first.items():
            if other != n_rows:
                expected = first + now - own_first if now > own_first else first * now / own_first
                self.steady[other] += RECOVERY * (expected - self.steady[other])
                if other < n_rows:
                    self.steady[other] = min(self.steady[other], max(first, expected))
