"""One width for all steps, where a change of width costs more than rows do. Pure.

On such a machine (server/llama/shapes.py) rows up to that width are free, and steps with fewer are padded.
Which width is best depends on how many guesses there are, how good they are, and how long they took to make:
every step counts what each width would have gained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from server.estimators import Ratio

# Of the past, per step: about the last 33 steps count. 16: a width is chosen by luck, 2.5 times the changes;
# 66: a text that is guessed worse pays for wide steps for 260 steps, not 140 (simulated, as all below).
KEEP = 0.97
EVERY = 16  # steps between two decisions. 8 or 32: the rate stays within 0.1 percent
BETTER = 1.02  # times the rate that another width must have. 1.01: 2.5 times the changes; 1.04: a sixth
SMOOTHING = 0.1  # weight of a measured time: nine tenths of a change show after 22 steps. 0.05: 45; 0.2: 11
# Weight for widths that are not measured: one that was twice as slow as at first is within 10 percent of that
# after 230 steps. 0.005: 460; 0.02: 120, so that a slow width is tried twice as often.
RECOVERY = 0.01


class Offered(NamedTuple):
    """probabilities[i]: that a guess is reached and right, best first. seconds: that making them held up the
    step."""

    probabilities: Sequence[float]
    seconds: float = 0.0


class Widths:
    """Chooses the width of steps."""

    def __init__(self, steady: Mapping[int, float]) -> None:
        """steady: seconds of a decode by rows, among equal ones; none where padding does not pay."""
        self.steady = dict(steady)
        self._at_first = dict(steady)
        guessing = [width for width in self.steady if width > 1]
        self.best = min(guessing, key=lambda width: self.steady[width], default=0)  # 0: any width
        self._begin(1)

    @property
    def pays(self) -> bool:
        """Whether padding can pay on this machine."""
        return bool(self.steady)

    def width(self, n_rows: int) -> int:
        """Of a step with n_rows rows without guesses; 0: any."""
        return self.best if n_rows == self._n_rows and n_rows <= self.best else 0

    def curve(self, width: int) -> list[float]:
        """Seconds of a step that is padded to `width`, for 0 … width rows."""
        return [self.steady[width]] * (width + 1)

    def observe(
        self, n_rows: int, offer: Offered, curve: Sequence[float], padded: Offered | None = None
    ) -> None:
        """A step could have had these guesses beside n_rows rows. curve: seconds of a decode by rows, of any
        width. padded: what a step of one width would have been offered, where that differs."""
        if n_rows != self._n_rows:
            self._begin(n_rows)
        gains, last = _gains(n_rows, offer), len(curve) - 1
        choices = [
            (gain, curve[min(n_rows + k, last)] + (offer.seconds if k else 0.0))
            for k, gain in enumerate(gains[: max(1, len(curve) - n_rows)])
        ]
        self._gains[0].observe(*max(choices, key=lambda choice: choice[0] / max(choice[1], 1e-9)))
        padded = padded or offer
        gains = _gains(n_rows, padded)
        for width in self.steady:
            k = width - n_rows
            gain = gains[min(k, len(gains) - 1)] if k >= 0 else 0.0
            self._gains[width].observe(gain, padded.seconds if k > 0 else 0.0)
        self._left -= 1
        if self._left <= 0:
            self._decide()

    def timed(self, width: int, seconds: float) -> None:
        """A padded step's decode took `seconds`. What made it longer than at first, a longer context above
        all, does so at other widths, too; the others also recover towards what they were at first."""
        known = self.steady[width]
        now = self.steady[width] = known + SMOOTHING * (min(seconds, 2.0 * known) - known)
        longer = now - self._at_first[width]
        for other, first in self._at_first.items():
            if other != width:
                self.steady[other] += RECOVERY * (first + longer - self.steady[other])

    def _begin(self, n_rows: int) -> None:
        self._n_rows, self._left = n_rows, EVERY
        # tokens, and seconds beside decodes of that width; by width, 0: any, decodes included
        self._gains = {width: Ratio(KEEP) for width in (0, *self.steady)}

    def _rate(self, width: int) -> float:
        gain = self._gains[width]
        seconds = gain.under + (gain.weight * self.steady[width] if width else 0.0)
        return gain.over / max(seconds, 1e-9)

    def _decide(self) -> None:
        self._left = EVERY
        best = max((0, *self.steady), key=self._rate)
        if self._rate(best) > BETTER * self._rate(self.best):
            self.best = best


def _gains(n_rows: int, offer: Offered) -> list[float]:
    """Tokens expected of a step with the first 0 … all of these guesses."""
    gains, total = [float(n_rows)], float(n_rows)
    for probability in offer.probabilities:
        total += probability
        gains.append(total)
    return gains
