"""Steps of few widths, where a change of width costs more than rows do. Pure.

On such a machine (server/llama/shapes.py) a step is as quick as others of its width only after one or two of
them: the graph of the first is built anew, that of the second recorded, if there is none of this width and of
about as many cells (graph_keys.py). So steps are padded to one of a few widths: to the one that gains most,
after what a change costs, spread over as many steps in a row as it is likely to be best for. To a wider
width that is the way there, and back to plain steps, which are not padded, as often as these follow instead
of a prompt. After a step of another shape, with rows of a prompt, or of another number of sessions, plain
steps are a change as well. What guesses of a model in the lead may lose by a change is bounded: by `most_s`,
which the session's balance affords.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from server.estimators import Mean

SMOOTHING = 0.1  # weight of a measured time: nine tenths of a change show after 22 steps. 0.05: 45; 0.2: 11
# Weight for widths that are not measured: one that was twice as slow as at first is within 10 percent of that
# after 230 steps. 0.005: 460; 0.02: 120, so that a slow width is tried twice as often.
RECOVERY = 0.01
CELLS_STEP = 256  # cells by which llama.cpp rounds up those that a step attends to: a graph is of one number
SETTLING = 2  # steps until one takes its usual time: the first builds the graph, the second records it
# Steps after a change. Off by two: half, one step that was disturbed shifts what a change costs by a fifth;
# twice, 20 changes pass before a cost that is too low shows.
WINDOW = 10
# Times that a width was best for a single step, as is assumed at first. 1 or 4: new leads make as many
# tokens per second within 2 percent (30 prompts on the emulated GPUs of benchmarks.graphs).
FEW_RUNS = 2
PLAIN = 0  # the width of steps without guesses, which are not padded


class Widths:
    """Chooses the width of steps."""

    def __init__(self, steady: Mapping[int, float], change_s: float = 0.0) -> None:
        """steady: seconds of a decode by rows, among equal ones; none where padding does not pay. change_s:
        seconds that the first one after others takes longer."""
        self.steady = dict(sorted(steady.items()))
        self._at_first = dict(self.steady)
        # of the first step after a change and of the second, by whether its width is recorded
        self._change = {
            recorded: [Mean(change_s, 2, WINDOW) for _ in range(SETTLING)] for recorded in (True, False)
        }
        self._recorded: set[tuple[int, int]] = set()  # widths, with steps of cells
        self._cells = 0  # steps of cells in use
        self._was_recorded = False  # that to which the latest change was, before it
        # steps in a row for which a wider width is best, and those for which none is
        self._runs = {wider: Mean(1.0, FEW_RUNS, WINDOW) for wider in (True, False)}
        self._is_wider, self._n_in_run = False, 0  # the run so far
        self._returns = Mean(1.0, FEW_RUNS, WINDOW)  # share of the wider ones that plain steps follow
        self._rows = [0] * SETTLING  # of the latest steps, the last one first
        self.width = PLAIN  # of the latest step that was planned
        self._n_rows = 0  # of that step, with padding; 0: it had another shape
        # seconds that a wider step may take beyond a plain one, with the way there and back; set before each
        self.most_s = math.inf

    @property
    def pays(self) -> bool:
        """Whether padding can pay on this machine."""
        return bool(self.steady)

    def use(self, n_cells: int) -> None:
        """The next step has n_cells cells in use, at least."""
        self._cells = n_cells // CELLS_STEP

    def change_s(self, n_rows: int) -> float:
        """Seconds that a change to steps of n_rows rows costs: of the first step and of the second."""
        first, second = self._change[(n_rows, self._cells) in self._recorded]
        return first.value + second.value

    def _shares_s(self, widths: Iterable[int], n_rows: int) -> dict[int, float]:
        """Seconds that a change to each of these widths takes beyond the least that any takes, spread over a
        run: as many steps as wider widths, or plain steps, were best for of late, or more if this run is
        longer. n_rows: of a plain step."""
        n_steps = {wider: run.value for wider, run in self._runs.items()}
        n_steps[self._is_wider] = max(n_steps[self._is_wider], self._n_in_run)
        ways = {width: self._way_s(width, n_rows) for width in widths}
        least_s = min(ways.values())
        return {width: (way_s - least_s) / n_steps[width != PLAIN] for width, way_s in ways.items()}

    def _way_s(self, width: int, n_rows: int) -> float:
        """Seconds of a change to this width, if it is one; if not from another wider one, with what the way
        back to n_rows rows is expected to take."""
        if (rows := width or n_rows) == self._n_rows:
            return 0.0
        way_s = self.change_s(rows)
        if width != PLAIN and (self._n_rows <= n_rows or self._n_rows not in self.steady):
            way_s += self._returns.value * self.change_s(n_rows)
        return way_s

    def is_settled(self, n_rows: int) -> bool:
        """Whether a step of n_rows rows takes its usual time now."""
        return all(rows == n_rows for rows in self._rows)

    def seconds(self, n_rows: int, plain_s: float) -> list[float]:
        """Of the next step for 0, 1, … rows, n_rows of which are no guesses, with its share of a change. A
        draft model in the lead decides by it how much to guess. plain_s: of a plain step among others."""
        wider = self._wider(n_rows, plain_s)
        shares = self._shares_s([PLAIN, *wider], n_rows)
        each = [(n_rows, plain_s + shares[PLAIN]), *[(w, s + shares[w]) for w, s in wider.items()]]
        seconds, least = list[float](), each[-1][1]
        for i in range(len(each) - 1, -1, -1):  # what costs more than something wider is padded
            least = min(least, each[i][1])
            each[i] = each[i][0], least
        for width, taken_s in each:
            seconds += [taken_s] * (width + 1 - len(seconds))
        return seconds

    def choose(self, n_rows: int, plain_s: float, probabilities: Sequence[float], rate: float) -> int:
        """The width of the next step: its rows with padding, or PLAIN. probabilities: that a guess beside
        n_rows rows is reached and right, best first. rate: tokens per second that time is worth; at most
        those of the best step that these guesses allow, since more is the rate of another text (gate.py)."""
        steps = {PLAIN: (float(n_rows), plain_s)}
        for width, s in self._wider(n_rows, plain_s).items():
            steps[width] = n_rows + sum(probabilities[: width - n_rows]), s
        rate = min(rate, max([tokens / s if s else math.inf for tokens, s in steps.values()]))
        gains = {w: tokens - rate * s for w, (tokens, s) in steps.items()}
        self._in_run(max(gains, key=gains.__getitem__) != PLAIN)
        shares = self._shares_s(gains, n_rows)
        return max(gains, key=lambda width: gains[width] - rate * shares[width])

    def stays_plain(self, n_rows: int, n_cells: int) -> bool:
        """Whether the next step, for which there are no guesses, is plain since the one before was and no
        wider one is quicker. If so it counts as chosen."""
        own_s = self.steady.get(n_rows)
        if own_s is None or self.width != PLAIN or n_rows != self._n_rows:
            return False
        if any(s < own_s for width, s in self.steady.items() if width > n_rows):
            return False
        self.use(n_cells)
        self._in_run(wider=False)
        return True

    def _in_run(self, wider: bool) -> None:
        """wider: for the next step a wider width is best, whatever a change costs."""
        if wider != self._is_wider:
            self._end_run(1.0)
        self._is_wider, self._n_in_run = wider, self._n_in_run + 1

    def _end_run(self, returns: float) -> None:
        """returns: 1 if a run of the other kind follows, 0 if a step of another shape does."""
        if self._n_in_run:
            self._runs[self._is_wider].observe(self._n_in_run)
            if self._is_wider:
                self._returns.observe(returns)
            self._n_in_run = 0

    def charge_s(self, width: int, n_rows: int) -> float:
        """Seconds of a change to this width beyond those of a change to plain steps of n_rows rows. 0 where
        most_s does not bound them."""
        return self._beyond_s(width, n_rows) if self.most_s < math.inf else 0.0

    def _beyond_s(self, width: int, n_rows: int) -> float:
        return max(0.0, self._way_s(width, n_rows) - self._way_s(PLAIN, n_rows))

    def _wider(self, n_rows: int, plain_s: float) -> dict[int, float]:
        """Seconds of the steps that the next one may be, by their width."""
        longest_s = plain_s + self.most_s
        return {
            w: s
            for w, s in self.steady.items()
            if w > n_rows and (w == self._n_rows or s + self._beyond_s(w, n_rows) <= longest_s)
        }

    def interrupted(self) -> None:
        """A step of another shape comes next, with rows of a prompt, say."""
        self._rows = [0] * SETTLING
        self._n_rows = 0
        self._end_run(0.0)

    def planned(self, width: int, n_rows: int) -> None:
        """The next step has this width, for guesses. n_rows: of it with padding; 0: it has another shape."""
        self.width, self._n_rows = width, n_rows

    def stepped(self, n_rows: int, seconds: float) -> None:
        """The decode of a step without prompts, of n_rows rows with padding, took `seconds`."""
        place = next((i for i, rows in enumerate(self._rows) if rows != n_rows), None)
        self._rows = [n_rows, *self._rows[:-1]]
        if place == 0:
            self._was_recorded = (n_rows, self._cells) in self._recorded
        else:
            self._recorded.add((n_rows, self._cells))
        known = self.steady.get(n_rows)
        if known is None:
            return
        if place is None:
            self._timed(n_rows, known, seconds)
        else:
            self._change[self._was_recorded][place].observe(min(max(seconds - known, 0.0), known))

    def _timed(self, n_rows: int, known: float, seconds: float) -> None:
        """A step among equal ones. What made it longer than at first, a longer context above all, does so at
        other widths, too; what made it shorter, a start in a busy moment, in proportion. The others also
        recover towards what they were at first. Fewer rows are taken to be slowed by no more: else plain
        steps that were disturbed would look slower than wider ones for long."""
        now = self.steady[n_rows] = known + SMOOTHING * (min(seconds, 2.0 * known) - known)
        own_first = self._at_first[n_rows]
        for other, first in self._at_first.items():
            if other != n_rows:
                expected = first + now - own_first if now > own_first else first * now / own_first
                self.steady[other] += RECOVERY * (expected - self.steady[other])
                if other < n_rows:
                    self.steady[other] = min(self.steady[other], max(first, expected))
