"""Is a guess worth its time? One rule, for whatever is chosen among. Pure.

The server makes `rate` tokens per second, so a step that takes dt longer costs rate · dt tokens elsewhere. To
take whatever gains more maximises tokens per second in the long run (renewal reward; Dinkelbach's parametric
form). A rate that no choice reaches is that of another text, so the rate is at most what the best choice
reaches: else a reply that went fast would bar the guesses of the next one for about 20 steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import mul


def reached(tokens: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the most tokens per second that any of these steps makes; infinite where one takes no time.

    Args:
        tokens: What each step commits.
        seconds: What each step takes. Longer or shorter sequences are cut.
    """
    try:
        return max([n / s for n, s in zip(tokens, seconds, strict=False)])
    except ZeroDivisionError:
        return math.inf


def best(tokens: Sequence[float], seconds: Sequence[float], rate: float) -> tuple[int, float]:
    """Choose among steps, the first of which is the one without guesses.

    Args:
        tokens: What each step commits.
        seconds: What each step takes. Longer or shorter sequences are cut.
        rate: Tokens per second that time is worth.

    Returns:
        The index of the step that gains most, the first of equals, and its gain over the first, in tokens.
    """
    gains = [n - rate * s for n, s in zip(tokens, seconds, strict=False)]
    most = max(gains)
    return gains.index(most), most - gains[0]


def chain(acceptance: float, n: int, path: float = 1.0) -> list[float]:
    """Return the tokens that 0, 1, … n guesses in a row bring.

    Args:
        acceptance: The probability that a guess is right if all before it are.
        n: The most guesses.
        path: The probability that all before the first one are right.
    """
    return list(accumulate(accumulate(repeat(acceptance, n), mul, initial=path), initial=-path))[1:]


class LostRows:
    """Rows that the next step is expected to evaluate again, where a wrong guess has the rows of its session
    evaluated anew unless it is one of the last n_tail."""

    def __init__(self, n_pending: Sequence[int], n_tail: int) -> None:
        """Begin with n_pending[i] rows of session i, and no guesses."""
        self._n_pending = n_pending
        self._n_tail = n_tail
        self._chains = [list[float]() for _ in n_pending]  # probabilities that all up to a guess are right
        self._n_rows = [0.0] * len(n_pending)

    def add(self, session: int, probability: float) -> float:
        """Add a guess at the end of its session's chain, which is all right with this probability.

        If a guess before the tail is wrong, the pending rows and those before it are evaluated again.

        Returns:
            The rows of all sessions that are expected to be evaluated again.
        """
        path = self._chains[session]
        path.append(probability)
        if (n := len(path) - self._n_tail) > 0:
            before, whole = path[: n - 1], path[n - 1]
            wrong = sum(before) - len(before) * whole
            self._n_rows[session] = self._n_pending[session] * (1.0 - whole) + wrong
        return sum(self._n_rows)


def more_s(seconds: Sequence[float], n_rows: int, n_more: float) -> float:
    """Return the seconds that n_more rows add to n_rows; interpolated, and extrapolated beyond the last."""
    last = len(seconds) - 1
    base = seconds[min(n_rows, last)]
    if n_rows + n_more >= last:
        return seconds[last] * max(1.0, (n_rows + n_more) / last) - base
    below = int(n_rows + n_more)
    share = n_rows + n_more - below
    return seconds[below] + share * (seconds[below + 1] - seconds[below]) - base
