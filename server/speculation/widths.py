"""One width for all steps, where changing it costs more than rows do. Pure.

On such a machine (server/llama/shapes.py) rows up to that width are free, and steps with fewer are padded.
Which width is best depends on how many guesses there are and how good they are: what each would have gained
is counted in every step, whatever was decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

KEEP = 0.97  # of what the past weighs, per step
EVERY = 16  # steps between two decisions
BETTER = 1.02  # the rate of another width must be this much better
SMOOTHING = 0.1  # of measured times


class Widths:
    """Tells the width that a step shall have."""

    def __init__(self, steady: Mapping[int, float]) -> None:
        """steady: seconds of a decode by rows, among equal ones; none where padding does not pay."""
        self.steady = dict(steady)
        self.best = 0  # at present; 0: steps of any width
        self._n_rows = 0
        self._tokens: dict[int, float] = {}  # by width, 0 for steps of any width
        self._weight = 0.0
        self._seconds = 0.0  # of steps of any width
        self._left = EVERY

    @property
    def pays(self) -> bool:
        """Whether padding can pay on this machine."""
        return bool(self.steady)

    def width(self, n_rows: int) -> int:
        """Of a step with so many rows that are decoded anyway; 0: any."""
        return self.best if n_rows == self._n_rows and n_rows <= self.best else 0

    def curve(self, width: int) -> list[float]:
        """Seconds for 0 … width rows of a step that is padded to it."""
        return [self.steady[width]] * (width + 1)

    def observe(self, n_rows: int, most: int, offered: Sequence[float], curve: Sequence[float]) -> None:
        """A step could have had these guesses beside n_rows rows, and at most `most` rows: offered[i] is the
        probability that a guess is reached and right, best first. curve: seconds of a decode by rows,
        whatever came before."""
        if n_rows != self._n_rows:
            self._begin(n_rows)
        gains, total = [float(n_rows)], float(n_rows)
        for probability in offered:
            total += probability
            gains.append(total)
        n_choices = min(len(gains), len(curve) - n_rows)
        free = max(
            range(max(n_choices, 1)),
            key=lambda k: gains[k] / max(curve[min(n_rows + k, len(curve) - 1)], 1e-9),
        )
        self._weight = KEEP * self._weight + 1.0
        self._seconds = KEEP * self._seconds + curve[min(n_rows + free, len(curve) - 1)]
        self._add(0, gains[free])
        for width in self.steady:
            self._add(width, gains[min(width - n_rows, len(gains) - 1)] if n_rows < width <= most else 0.0)
        self._left -= 1
        if self._left <= 0:
            self._decide()

    def timed(self, width: int, seconds: float) -> None:
        """A padded step's decode took so long."""
        known = self.steady[width]
        self.steady[width] = known + SMOOTHING * (min(seconds, 2.0 * known) - known)

    def _add(self, width: int, tokens: float) -> None:
        self._tokens[width] = KEEP * self._tokens.get(width, 0.0) + tokens

    def _begin(self, n_rows: int) -> None:
        self._n_rows, self._left = n_rows, EVERY
        self._tokens, self._weight, self._seconds = {}, 0.0, 0.0

    def _rate(self, width: int) -> float:
        seconds = self._weight * self.steady[width] if width else self._seconds
        return self._tokens.get(width, 0.0) / max(seconds, 1e-9)

    def _decide(self) -> None:
        self._left = EVERY
        best = max((0, *self.steady), key=self._rate)
        if self._rate(best) > BETTER * self._rate(self.best):
            self.best = best
