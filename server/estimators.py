"""Estimators that learn from measurements and forget: means, ratios and lines. Pure.

The caller passes a constant that sets how fast an estimator forgets. The comment beside the constant says
what follows if it is off by a factor of two. In general, if the latest observation weighs 1/n, the estimate
has 1/sqrt(2n) of the observations' scatter, and follows a change after n observations. So twice the n leaves
0.7 times the scatter, and needs twice the time to follow a change.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

N_MOMENTS = 5  # numbers that a Slope keeps


class Mean:
    """Mean of about the latest `window` observations, or of all observations if there are fewer."""

    __slots__ = ("_window", "count", "value")

    def __init__(self, value: float, count: int, window: int) -> None:
        """Begin as if `value` had been observed `count` times; at most about `window` observations count."""
        self.value, self.count, self._window = value, count, window

    def observe(self, value: float) -> None:
        if self.count < self._window:
            self.count += 1
        self.value += (value - self.value) / self.count


class Smoothed:
    """Exponentially weighted mean: a new observation counts with `weight`, the old mean with 1 - `weight`."""

    __slots__ = ("_weight", "is_known", "value")

    def __init__(self, weight: float, value: float | None = None) -> None:
        """Begin with an assumed value; if it is None, the first observation becomes the value."""
        self._weight = weight
        self.value, self.is_known = value or 0.0, value is not None

    def observe(self, value: float, weight: float | None = None) -> None:
        """Learn from an observation; `weight` replaces the usual weight."""
        if not self.is_known:
            self.value, self.is_known = value, True
        else:
            self.value += (value - self.value) * (self._weight if weight is None else weight)


class Median:
    """Median of the latest n observations: robust while fewer than half of them are disturbed."""

    __slots__ = ("_latest", "_n", "_ranked", "value")

    def __init__(self, n: int) -> None:
        self._n = n
        self._latest: deque[float] = deque()
        self._ranked: list[float] = []
        self.value = 0.0

    @property
    def count(self) -> int:
        """Return the number of observations, at most n."""
        return len(self._latest)

    def observe(self, value: float) -> None:
        latest, ranked = self._latest, self._ranked
        if len(latest) == self._n:
            del ranked[bisect_left(ranked, latest.popleft())]
        latest.append(value)
        insort(ranked, value)
        middle = len(ranked) // 2
        self.value = ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2

    def restart(self) -> None:
        """Forget all observations; `value` stays until the next observation."""
        self._latest.clear()
        self._ranked.clear()


class Ratio:
    """Ratio of two sums, such as tokens per second. Each observation multiplies the past by `keep`."""

    __slots__ = ("_keep", "over", "under", "value", "weight")

    def __init__(self, keep: float) -> None:
        """Begin without observations; `value` is 0 until the first."""
        self._keep = keep
        self.over = self.under = self.weight = self.value = 0.0

    def observe(self, over: float, under: float) -> None:
        self.over = self._keep * self.over + over
        self.under = self._keep * self.under + under
        self.weight = self._keep * self.weight + 1.0
        self.value = self.over / self.under if self.under > 0.0 else 0.0


class Slope:
    """Slope of y over x by least squares. Each observation multiplies the weight of the past by `keep`.

    `moments` is its whole state, N_MOMENTS numbers.
    """

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self.moments = [0.0] * N_MOMENTS  # weight; sums of x, y, x², xy

    def observe(self, x: float, y: float) -> None:
        keep, (weight, sum_x, sum_y, sum_xx, sum_xy) = self._keep, self.moments
        self.moments = [
            keep * weight + 1.0,
            keep * sum_x + x,
            keep * sum_y + y,
            keep * sum_xx + x * x,
            keep * sum_xy + x * y,
        ]

    @property
    def value(self) -> float:
        """Return the slope; 0 if y falls, or if x hardly varied."""
        weight, x, y, xx, xy = self.moments
        spread = weight * xx - x * x
        return max(0.0, (weight * xy - x * y) / spread) if spread > 1e-6 * weight * weight else 0.0


def numbers(memory: object) -> list[float]:
    """Return `memory` if it is a list of finite, non-negative floats, else []."""
    found = cast(list[Any], memory) if isinstance(memory, list) else []
    return found if all(isinstance(one, float) and 0.0 <= one < math.inf for one in found) else []


T = TypeVar("T")


class LatestUsed(dict[str, T]):
    """A dict that makes a name's value on first use: an approximate LRU cache.

    It has two generations. When the new generation has `most` values, it becomes the old one, and values of
    the former old one are dropped. A used value of the old generation moves to the new one. So a use costs
    one dict look-up, and at least the `most` names used last are kept.
    """

    def __init__(self, make: Callable[[str], T], most: int) -> None:
        self._make, self._most = make, most
        self._older: dict[str, T] = {}

    def __missing__(self, name: str) -> T:
        known = self._older.pop(name, None)
        if len(self) >= self._most:
            self._older = dict(self)
            self.clear()
        self[name] = made = self._make(name) if known is None else known
        return made
