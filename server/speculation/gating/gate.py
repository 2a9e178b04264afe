"""Is a guess worth its row? Pure decisions from measured costs, acceptance and the current rate.

The server makes `rate` tokens per second, so a step that takes dt longer costs rate · dt tokens elsewhere. To
take whatever gains more maximises tokens per second in the long run (renewal reward; Dinkelbach's parametric
form). A rate that this step cannot reach is that of another text, so the most that it can reach counts: else
a reply that went fast would bar the guesses of the next one for about 20 steps. `seconds[k]` is the measured
time of a decode of k rows, with all its steps, so that widths snap to what the machine does well."""

from __future__ import annotations

import math
from collections.abc import Sequence


def choose(
    seconds: Sequence[float],
    n_rows: int,
    offers: Sequence[Sequence[float]],
    rate: float,
    again: Sequence[int] = (),
    n_tail: int = 0,
) -> list[int]:
    """How many of each session's guesses to verify beside n_rows rows that are decoded anyway.

    offers[i]: for each guess of session i, best first, the probability that it is reached and right. One
    budget: the k most probable guesses of all sessions, for the k that gains most; at most len(seconds) - 1
    rows. again[i]: how many of the n_rows rows are session i's; given where a wrong guess has the right rows
    of its session evaluated again, unless it is one of the last n_tail.
    """
    if len(offers) == 1 and not again:
        return [_best(seconds, n_rows, offers[0], rate)]
    counts = [0] * len(offers)
    ranked = sorted([(-probability, i) for i, offer in enumerate(offers) for probability in offer])
    probabilities = [-negative for negative, _ in ranked]
    losses = _losses(seconds, ranked, again, n_tail) if again else ()
    for _, i in ranked[: _best(seconds, n_rows, probabilities, rate, losses)]:
        counts[i] += 1
    return counts


def _best(
    seconds: Sequence[float],
    n_rows: int,
    probabilities: Sequence[float],
    rate: float,
    losses: Sequence[float] = (),
) -> int:
    """How many of these guesses, best first, gain most. losses[k]: seconds that k + 1 of them add later."""
    plain_s, wider = seconds[min(n_rows, len(seconds) - 1)], seconds[n_rows + 1 :]
    tokens, reached = float(n_rows), n_rows / plain_s if plain_s else math.inf
    if plain_s:
        for probability, cost in zip(probabilities, wider, strict=False):
            tokens += probability
            if tokens > reached * cost:
                reached = tokens / cost
    rate = min(rate, reached)
    best, most, gained = 0, 0.0, 0.0
    for k, (probability, cost) in enumerate(zip(probabilities, wider, strict=False)):
        gained += probability
        gain = gained - rate * (cost - plain_s + (losses[k] if losses else 0.0))
        if gain > most:
            best, most = k + 1, gain
    return best


def worth(
    seconds: Sequence[float], n_rows: int, probabilities: Sequence[float], rate: float, td_s: float = 0.0
) -> float:
    """Tokens that the best number of these guesses bring beyond what their time makes at this rate.

    probabilities: that each is reached and right, best first. td_s: to make one, 0 for those that are there.
    """
    last, most, gained = len(seconds) - 1, 0.0, 0.0
    plain_s = seconds[min(n_rows, last)]
    for k, probability in enumerate(probabilities[: max(0, last - n_rows)], start=1):
        gained += probability
        most = max(most, gained - rate * (seconds[n_rows + k] - plain_s + k * td_s))
    return most


def _losses(
    seconds: Sequence[float], ranked: Sequence[tuple[float, int]], again: Sequence[int], n_tail: int
) -> list[float]:
    """Seconds that the first guess, two, … all of them are expected to add to the next step."""
    lost, losses = _Lost(again, n_tail), list[float]()
    for negative, i in ranked:
        lost.guess(i, -negative)
        losses.append(_extra_s(seconds, len(again), lost.n_rows))
    return losses


def potential(seconds: Sequence[float], n_sessions: int, acceptance: float, td_s: float = 0.0) -> float:
    """Tokens per second with guesses that are right with probability `acceptance`, by those of plain steps of
    n_sessions rows. td_s: of a round of guesses, one for each session. 1 where no guess pays, or no time is
    known."""
    last = len(seconds) - 1
    if not 0 < n_sessions <= last or not seconds[n_sessions]:
        return 1.0
    tokens = float(n_sessions)
    plain = best = tokens / seconds[n_sessions]
    for k in range(last - n_sessions):
        depth = 1 + k // n_sessions
        tokens += acceptance**depth
        best = max(best, tokens / (seconds[n_sessions + 1 + k] + depth * td_s))
    return best / plain


def reachable(
    seconds: Sequence[float], n_rows: int, acceptances: Sequence[float], limit: int, td_s: float
) -> float:
    """Tokens per second of the best step with chains of up to `limit` guesses, each of which is right with
    probability acceptances[i] in session i, after n_rows rows. A round of guesses takes td_s. Infinite where
    no time is known."""
    last = len(seconds) - 1
    if not 0 < n_rows <= last or not seconds[n_rows]:
        return math.inf
    tokens, paths, spent_s = float(n_rows), list(acceptances), 0.0
    best = tokens / seconds[n_rows]
    more = 1.0 / max(1e-9, 1.0 - max(paths, default=0.0))  # times a round's tokens: of all that may follow
    for rows in range(n_rows + len(paths), min(last, n_rows + limit * len(paths)) + 1, len(paths)):
        gained = sum(paths)
        spent_s += td_s
        step_s = seconds[rows] + spent_s
        if tokens + gained * more <= best * step_s:
            break  # all that may follow takes at least as long
        tokens += gained
        best = max(best, tokens / step_s)
        paths = [path * acceptance for path, acceptance in zip(paths, acceptances, strict=True)]
    return best


def affordable(seconds: Sequence[float], n_rows: int, most: int, td_s: float, n_tokens: float) -> int:
    """How many guesses of one session, `most` at most, take no longer beside n_rows rows than plain steps of
    n_rows rows that make n_tokens tokens of that session. A guess takes td_s, and its row. All where no time
    is known."""
    plain_s, last = seconds[min(n_rows, len(seconds) - 1)], len(seconds) - 1
    if not plain_s:
        return most
    for n in range(1, min(most, last - n_rows) + 1):
        if seconds[n_rows + n] + n * td_s > (1.0 + n_tokens) * plain_s:
            return n - 1
    return most


class _Lost:
    """Rows that the next step is expected to evaluate again, where llama.cpp keeps the states of a step's
    last n_tail guesses."""

    def __init__(self, n_pending: Sequence[int], n_tail: int) -> None:
        self._n_pending = n_pending
        self._n_tail = n_tail
        self._chains = [list[float]() for _ in n_pending]  # probabilities that all up to a guess are right
        self._n_rows = [0.0] * len(n_pending)

    def guess(self, session: int, probability: float) -> None:
        """One more guess at the end of its session's chain, which is all right with this probability. If one
        before the tail is wrong, the pending rows and those before it are evaluated again."""
        chain = self._chains[session]
        chain.append(probability)
        if (n := len(chain) - self._n_tail) > 0:
            paths, whole = chain[: n - 1], chain[n - 1]
            lost = sum(paths) - len(paths) * whole
            self._n_rows[session] = self._n_pending[session] * (1.0 - whole) + lost

    @property
    def n_rows(self) -> float:
        return sum(self._n_rows)


def _extra_s(seconds: Sequence[float], n_rows: int, n_more: float) -> float:
    """Seconds that n_more rows add to n_rows; interpolated, and extrapolated beyond the last."""
    last = len(seconds) - 1
    base = seconds[min(n_rows, last)]
    if n_rows + n_more >= last:
        return seconds[last] * max(1.0, (n_rows + n_more) / last) - base
    below = int(n_rows + n_more)
    share = n_rows + n_more - below
    return seconds[below] + share * (seconds[below + 1] - seconds[below]) - base


def with_losses(
    seconds: Sequence[float], n_rows: int, n_sessions: int, acceptance: float, n_tail: int = 0
) -> list[float]:
    """`seconds` plus, beyond n_rows, the time to evaluate rows again after a chain of guesses of which each
    is right with probability `acceptance`. n_tail: as choose() takes it."""
    curve, lost, path = list(seconds), _Lost([n_rows], n_tail), 1.0
    for k in range(n_rows + 1, len(curve)):
        path *= acceptance
        lost.guess(0, path)
        curve[k] += _extra_s(seconds, n_sessions, lost.n_rows)
    return curve


def worth_drafting(
    seconds: Sequence[float], path: float, outlook: Sequence[tuple[float, float]], td_s: float, rate: float
) -> bool:
    """Whether the draft model in the lead makes one more guess after a path with probability `path`.

    seconds: of a step with the path's rows, with one more, and on. outlook: kinds of next guesses, as (how
    likely, how often right). A guess costs td_s, and its row only if it is verified. Looks as far ahead as
    rows go, as if all later guesses were like the next one: where costs have steps, four rows may pay
    although one does not.
    """
    if len(seconds) < 2:
        return False  # no row is free
    worth, wanted = 0.0, rate * td_s
    for share, acceptance in outlook:
        most, gained, probability, drafting_s = 0.0, 0.0, path, -seconds[0]
        for step_s in seconds[1:]:
            probability *= acceptance
            gained += probability
            net = gained - rate * (drafting_s + step_s)
            if net > most:
                most = net
                if worth + share * most > wanted:
                    return True
            if probability < 0.05:
                break
            drafting_s += td_s
        worth += share * most
    return False
