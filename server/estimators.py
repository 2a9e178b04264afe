"""What learns from measurements: means, shares and lines that forget. Pure.

Who makes one says how fast it forgets, and beside that constant what follows if it is off by two. In general:
an estimator whose latest observation weighs 1/n keeps 1/sqrt(2n) of their scatter and follows a change after
n of them. With twice the memory 0.7 times the scatter is left, and a change is noticed half as soon.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any, cast

N_MOMENTS = 5  # of a Slope
N_NUMBERS = 9  # of a Plane's memory


class Mean:
    """The mean of what was observed, once `window` observations are known of about the latest `window`."""

    __slots__ = ("_window", "count", "value")

    def __init__(self, value: float, count: int, window: int) -> None:
        """Begins as if `value` had been observed `count` times."""
        self.value, self.count, self._window = value, count, window

    def observe(self, value: float) -> None:
        if self.count < self._window:
            self.count += 1
        self.value += (value - self.value) / self.count


class Smoothed:
    """A mean in which each observation weighs `weight` and what was known before the rest."""

    __slots__ = ("_weight", "is_known", "value")

    def __init__(self, weight: float, value: float | None = None) -> None:
        """value: what is assumed at first; None: nothing, the first observation counts whole."""
        self._weight = weight
        self.value, self.is_known = value or 0.0, value is not None

    def observe(self, value: float, weight: float | None = None) -> None:
        """weight: of this observation, if it is another one."""
        if not self.is_known:
            self.value, self.is_known = value, True
        else:
            self.value += (value - self.value) * (self._weight if weight is None else weight)


class Median:
    """Of the latest n observations: those that were disturbed do not count if they are fewer than half."""

    def __init__(self, n: int) -> None:
        self._latest: deque[float] = deque(maxlen=n)
        self.value = 0.0

    def observe(self, value: float) -> None:
        self._latest.append(value)
        self.value = median(self._latest)


class Ratio:
    """Of two sums in which the past weighs `keep` for each new observation: tokens per second, say."""

    __slots__ = ("_keep", "over", "under", "weight")

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self.over = self.under = self.weight = 0.0

    def observe(self, over: float, under: float) -> None:
        self.over = self._keep * self.over + over
        self.under = self._keep * self.under + under
        self.weight = self._keep * self.weight + 1.0

    @property
    def value(self) -> float:
        """0 before the first observation."""
        return self.over / self.under if self.under > 0.0 else 0.0


class Slope:
    """How much y grows with x, by least squares; the past weighs `keep` for each new observation. moments:
    all that was seen, as N_MOMENTS numbers."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self.moments = [0.0] * N_MOMENTS  # weight, sums, products

    def observe(self, x: float, y: float) -> None:
        news = (1.0, x, y, x * x, x * y)
        self.moments = [self._keep * old + new for old, new in zip(self.moments, news, strict=True)]

    @property
    def value(self) -> float:
        """0 if y falls, or if x was nearly always the same."""
        weight, x, y, xx, xy = self.moments
        spread = weight * xx - x * x
        return max(0.0, (weight * xy - x * y) / spread) if spread > 1e-6 * weight * weight else 0.0


class Plane:
    """Seconds as a + b · rows + c · cells by least squares, where neither b nor c is below 0; the past weighs
    `keep` for each new observation."""

    def __init__(
        self,
        keep: float,
        enough: float,
        surprise: float,
        sharpest: tuple[float, float],
        *,
        through_origin: bool = False,
    ) -> None:
        """enough: observations, by weight, from which it is known; surprise: times the expected seconds, most
        that is believed then; sharpest: squared differences in rows and cells that are no trend;
        through_origin: a is 0."""
        self._keep, self._enough, self._surprise, self._sharpest = keep, enough, surprise, sharpest
        self._origin = through_origin
        # weight, sums of rows, cells, seconds, and of rows², rows · cells, cells², rows · seconds,
        # cells · seconds: all that was seen
        self.memory = [0.0] * N_NUMBERS
        self._fit: tuple[float, float, float] | None = None

    @property
    def is_known(self) -> bool:
        return self.memory[0] >= self._enough

    def observe(self, rows: float, cells: float, seconds: float) -> None:
        if self.is_known:
            usual_s = max(self.seconds(rows, cells), self.memory[3] / self.memory[0])
            seconds = min(seconds, self._surprise * usual_s)
        squares = rows * rows, rows * cells, cells * cells
        news = (1.0, rows, cells, seconds, *squares, rows * seconds, cells * seconds)
        self.recall([self._keep * old + new for old, new in zip(self.memory, news, strict=True)])

    def seconds(self, rows: float, cells: float) -> float:
        if self._fit is None:
            self._fit = self._solved()
        a, b, c = self._fit
        return a + b * rows + c * cells

    def recall(self, memory: Sequence[float]) -> None:
        self.memory, self._fit = list(memory), None

    def _solved(self) -> tuple[float, float, float]:
        n, m, t, nn, nm, mm, nt, mt = (x / self.memory[0] for x in self.memory[1:])
        n, m, t = (0.0, 0.0, 0.0) if self._origin else (n, m, t)
        nn, nm, mm, nt, mt = nn - n * n, nm - n * m, mm - m * m, nt - n * t, mt - m * t
        nn, mm = nn + self._sharpest[0], mm + self._sharpest[1]
        scale = nn * mm - nm * nm
        b, c = (nt * mm - mt * nm) / scale, (mt * nn - nt * nm) / scale
        if b < 0.0:
            b, c = 0.0, max(0.0, mt / mm)
        elif c < 0.0:
            b, c = max(0.0, nt / nn), 0.0
        return t - b * n - c * m, b, c


def numbers(memory: object) -> list[float]:
    """A list of finite numbers that are not negative; anything else as an empty one."""
    found = cast(list[Any], memory) if isinstance(memory, list) else []
    return found if all(isinstance(one, float) and 0.0 <= one < math.inf for one in found) else []
