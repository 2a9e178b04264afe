"""What a step with guesses costs the plain ones after it, where a GPU records a graph for each width. Pure.

There a plain step takes its usual time only once two of them went before: the first after a wider one is
built anew, the second is recorded. So a lone step with guesses costs more than itself. Where steps with
guesses follow each other it does not, so what comes after counts as often as plain steps come after.
"""

from __future__ import annotations

from collections.abc import Sequence

SETTLING = 2  # steps until one takes its usual time
SMOOTHING = 0.1
RECENT = 64  # steps for which a usual time is one to compare with


class _Mean:
    """Of all that was observed to begin with, later of the latest."""

    __slots__ = ("count", "value")

    def __init__(self, value: float) -> None:
        self.value, self.count = value, 2  # so that one that is out of the ordinary does not stand for all

    def observe(self, value: float) -> None:
        self.count += 1
        self.value += max(SMOOTHING, 1 / self.count) * (value - self.value)


class Aftermath:
    """Learns from every step."""

    def __init__(self) -> None:
        self._widths = [0] * SETTLING  # of the latest steps, the last one first
        self._excess = [_Mean(0.0) for _ in range(SETTLING)]  # seconds, of plain steps after a wider one
        self._usual: tuple[int, float, int] = 0, 0.0, 0  # rows, seconds, number of the last settled one
        self._n_steps = 0
        self._paid = False  # whether guesses would have paid in the last step
        self._back = _Mean(1.0)  # how often they then do not in the next

    def usual(self, rows: int, seconds: float, *, plain: bool) -> float:
        """A step of so many rows took so long. Returns what it would have taken among others like it, of a
        plain one; of another one what it took."""
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
        """Whether guesses would pay in the step to come if nothing came after it."""
        if self._paid:
            self._back.observe(not pays)
        self._paid = pays

    def charged(self, seconds: Sequence[float], n_rows: int) -> list[float]:
        """`seconds` by rows, with what follows added where there are more than n_rows."""
        after_s = self._back.value * sum(excess.value for excess in self._excess)
        return [s + after_s if rows > n_rows else s for rows, s in enumerate(seconds)]
