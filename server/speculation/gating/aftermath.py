"""What a step with guesses costs the plain steps after it, where a GPU records a graph for each width. Pure.

There a plain step takes its usual time only after two others: the first after a wider one is built anew, the
second is recorded. So a lone step with guesses costs more than itself. Where steps with guesses follow each
other it does not, so this cost is charged by how often plain steps follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.estimators import Mean

SETTLING = 2  # steps until one takes its usual time: the first builds the graph, the second records it
# Steps after guesses. Off by two: half, one step that was disturbed shifts the charge by a fifth; twice, 20
# steps with guesses pass before a charge that is too low shows.
WINDOW = 10
RECENT = 64  # steps for which a usual time is compared with: longer, the context has grown too much


class Aftermath:
    """Learns from every step."""

    def __init__(self) -> None:
        self._widths = [0] * SETTLING  # rows of the latest steps, the last one first
        # seconds more than usual, of plain steps after a wider one; two zeros against a first outlier
        self._excess = [Mean(0.0, 2, WINDOW) for _ in range(SETTLING)]
        self._usual: tuple[int, float, int] = 0, 0.0, 0  # rows, seconds, number of the last settled one
        self._n_steps = 0
        self._paid = False  # whether guesses would have paid in the last step
        self._back = Mean(1.0, 2, WINDOW)  # how often they then do not in the next

    def usual(self, rows: int, seconds: float, *, plain: bool) -> float:
        """A step of `rows` rows took `seconds`. Returns what it would have taken after others of its width if
        it was plain, else `seconds`."""
        before, self._widths = self._widths, [rows, *self._widths[:-1]]
        self._n_steps += 1
        if not plain:
            return seconds
        place = next((i for i, width in enumerate(before) if width != rows), None)
        if place is None:
            self._usual = rows, seconds, self._n_steps
            return seconds
        usual_rows, usual_s, number = self._usual
        if usual_rows == rows and self._n_steps - number < RECENT:
            self._excess[place].observe(min(max(seconds - usual_s, 0.0), usual_s))
        return max(seconds - self._excess[place].value, min(seconds, usual_s))

    def would_pay(self, pays: bool) -> None:
        """Whether guesses would pay in the step to come if it had no aftermath."""
        if self._paid:
            self._back.observe(not pays)
        self._paid = pays

    def charged(self, seconds: Sequence[float], n_rows: int) -> list[float]:
        """`seconds` by rows, with the aftermath added where there are more than n_rows."""
        after_s = self._back.value * sum(excess.value for excess in self._excess)
        return [s + after_s if rows > n_rows else s for rows, s in enumerate(seconds)]
