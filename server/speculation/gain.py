"""Decide whether a guess is worth its time, by one rule for all choices. Pure.

The server makes `rate` tokens per second, so a step that takes dt longer costs rate · dt tokens elsewhere.
Always taking the choice with the largest net gain maximises tokens per second in the long run (renewal
reward; Dinkelbach's parametric form). The rate is clamped to what the best choice reaches; otherwise a fast
reply would prevent guesses in the next reply for about 20 steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from operator import mul


def reached(tokens: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the tokens per second of the best of these steps; infinite if one takes no time.

    Args:
        tokens: Tokens committed by each step.
        seconds: Seconds of each step. The longer of the two sequences is cut.
    """
    try:
        return max([n / s for n, s in zip(tokens, seconds, strict=False)])
    except ZeroDivisionError:
        return math.inf


def best(tokens: Sequence[float], seconds: Sequence[float], rate: float) -> tuple[int, float]:
    """Choose the step with the largest gain over the first one, which has no guesses.

    Args:
        tokens: Tokens committed by each step.
        seconds: Seconds of each step. The longer of the two sequences is cut.
        rate: The price of time, in tokens per second: a step that takes dt longer costs rate · dt tokens.

    Returns:
        The index of the step with the largest gain (the first one of several), and this step's gain over step
        0 in tokens.
    """
    gains = [n - rate * s for n, s in zip(tokens, seconds, strict=False)]
    most = max(gains)
    return gains.index(most), most - gains[0]


def chain(acceptance: float, n: int, path: float = 1.0) -> list[float]:
    """Return the expected number of accepted guesses among the first 0, 1, … n guesses of a chain.

    Args:
        acceptance: Probability that a guess is right if all before it are.
        n: Maximum guesses.
        path: Probability that all guesses before the first one are right.
    """
    return list(accumulate(accumulate(repeat(acceptance, n), mul, initial=path), initial=-path))[1:]


def lost_rows(guesses: Iterable[tuple[float, int]], n_pending: Sequence[int], n_tail: int) -> Iterator[float]:
    """Yield the expected rows that the next step evaluates again, if the first 1, 2, … guesses are verified.

    If a guess is wrong, its session's pending rows and the guesses before it are evaluated again, unless it
    is one of the last n_tail guesses of its chain.

    Args:
        guesses: For each guess: the probability that this guess and all earlier ones of its session are
            right, and the session's index.
        n_pending: Rows of each session without guesses.
        n_tail: Number of guesses at a chain's end whose rows the backend can remove.
    """
    chains = [list[float]() for _ in n_pending]
    rows = [0.0] * len(n_pending)
    for probability, session in guesses:
        chain = chains[session]
        chain.append(probability)
        if (n := len(chain) - n_tail) > 0:
            before, whole = chain[: n - 1], chain[n - 1]
            wrong = sum(before) - len(before) * whole
            rows[session] = n_pending[session] * (1.0 - whole) + wrong
        yield sum(rows)


def more_s(seconds: Sequence[float], n_rows: int, n_more: float) -> float:
    """Return the seconds that n_more rows add to a step of n_rows rows, inter- or extrapolated.

    seconds: seconds[n] is the time of a step of n rows, for n = 0, 1, 2, …
    """
    last = len(seconds) - 1
    base = seconds[min(n_rows, last)]
    if n_rows + n_more >= last:
        return seconds[last] * max(1.0, (n_rows + n_more) / last) - base
    below = int(n_rows + n_more)
    share = n_rows + n_more - below
    return seconds[below] + share * (seconds[below + 1] - seconds[below]) - base
