"""Is a guess worth its row? Pure decisions from measured costs, acceptance and the current rate.

The server works at `rate` tokens per second, so a step that takes dt longer costs rate · dt tokens elsewhere.
Whatever gains more tokens than that is worth it, which maximises tokens per second in the long run (renewal
reward; Dinkelbach's parametric form). `seconds[k]` is the time of a decode of k rows; the functions trust it
to be as measured, steps and all, so that widths snap to what the machine does well by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence


def choose(
    seconds: Sequence[float],
    n_rows: int,
    offers: Sequence[Sequence[float]],
    rate: float,
    again: Sequence[int] = (),
) -> list[int]:
    """How many of each session's guesses to verify beside n_rows rows that are decoded anyway.

    offers[i]: for each guess of session i, in the order they would be taken (parents first), the probability
    that the row is reached and confirms it. One budget: the k most probable over all sessions, for the k
    with the largest gain. len(seconds) - 1 rows at most. again[i]: how many of the n_rows rows are session
    i's; given where a chain that is not wholly right has its session's right rows evaluated again.
    """
    counts = [0] * len(offers)
    ranked = sorted([(-probability, i) for i, offer in enumerate(offers) for probability in offer])
    best, gained, spent = 0, 0.0, seconds[min(n_rows, len(seconds) - 1)]
    most, lost = 0.0, _Lost(again)
    for k, ((negative, i), cost) in enumerate(zip(ranked, seconds[n_rows + 1 :], strict=False), start=1):
        gained -= negative
        gain = gained - rate * (cost - spent)
        if again:
            lost.guess(i, -negative)
            gain -= rate * _extra_s(seconds, len(again), lost.n_rows)
        if gain > most:
            best, most = k, gain
    for _, i in ranked[:best]:
        counts[i] += 1
    return counts


class _Lost:
    """How many rows are expected to be evaluated again in the next step."""

    def __init__(self, n_pending: Sequence[int]) -> None:
        self._n_pending = n_pending
        self._chains = [(0, 0.0)] * len(n_pending)  # guesses so far, and the sum of their probabilities
        self._n_rows = [0.0] * len(n_pending)

    def guess(self, session: int, probability: float) -> None:
        """One more guess is verified, the last of its session's chain: with that probability none was wrong,
        else what was pending and all that was right before the first wrong one is lost."""
        n, total = self._chains[session]
        self._chains[session] = n + 1, total + probability
        self._n_rows[session] = self._n_pending[session] * (1.0 - probability) + total - n * probability

    @property
    def n_rows(self) -> float:
        return sum(self._n_rows)


def _extra_s(seconds: Sequence[float], n_rows: int, n_more: float) -> float:
    """Seconds that so many rows more take beside n_rows, between and beyond the measured numbers as well."""
    last = len(seconds) - 1
    base = seconds[min(n_rows, last)]
    if n_rows + n_more >= last:
        return seconds[last] * max(1.0, (n_rows + n_more) / last) - base
    below = int(n_rows + n_more)
    share = n_rows + n_more - below
    return seconds[below] + share * (seconds[below + 1] - seconds[below]) - base


def with_losses(seconds: Sequence[float], n_rows: int, n_sessions: int, acceptance: float) -> list[float]:
    """`seconds` for whoever decides how far to guess: beyond n_rows, what a chain of guesses that are each
    right so often will have evaluated again is added."""
    curve, lost, path = list(seconds), _Lost([n_rows]), 1.0
    for k in range(n_rows + 1, len(curve)):
        path *= acceptance
        lost.guess(0, path)
        curve[k] += _extra_s(seconds, n_sessions, lost.n_rows)
    return curve


def worth_drafting(
    seconds: Sequence[float],
    n_rows: int,
    path: float,
    outlook: Sequence[tuple[float, float]],
    td_s: float,
    rate: float,
) -> bool:
    """Whether to draft on, synchronously, after a path of that probability whose rows are in n_rows already.

    outlook: what the next guess can be, as (how likely, how often it is right then). Drafting costs td_s; its
    row is only paid for if the guess turns out to be worth it. Looks as far ahead as rows go, as if what
    comes after was as the next guess: one row more may not pay while four do, where widths have steps.
    """
    worth, wanted = 0.0, rate * td_s
    for share, acceptance in outlook:
        most, gained, probability = 0.0, 0.0, path
        for k in range(1, len(seconds) - n_rows):
            probability *= acceptance
            gained += probability
            extra_s = (k - 1) * td_s + seconds[n_rows + k] - seconds[n_rows]
            most = max(most, gained - rate * extra_s)
            if worth + share * most > wanted:
                return True
            if probability < 0.05:
                break
        worth += share * most
    return False
