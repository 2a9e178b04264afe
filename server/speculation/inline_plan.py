"""Plan what the model in the lead evaluates and guesses. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from server.speculation import gain
from server.speculation.step import Drafting, DraftPath
from server.speculation.tree import LEAST
from server.speculation.view import View, offer


def draft_path(view: View, drafting: Drafting, i: int, most: int) -> DraftPath:
    """Return an empty path for the i-th session, limited to the guesses it can afford, at most `most`."""
    speculated = view.sessions[i]
    share, sure, unsure = speculated.hits.outlook(drafting.source)
    limit = most
    if view.policy.gate and (undrafted_s := drafting.seconds[min(view.n_rows, len(drafting.seconds) - 1)]):
        last = min(most, len(drafting.seconds) - 1 - view.n_rows)
        longest_s = (1.0 + speculated.account.allowance) * undrafted_s
        affordable = (
            n - 1
            for n in range(1, last + 1)
            if drafting.seconds[view.n_rows + n] + n * drafting.td_s > longest_s
        )
        limit = next(affordable, most)
    kinds = sorted([(share, sure), (1.0 - share, unsure)], reverse=True)
    prospects = [(one, gain.chain(right, min(most, _most_guesses_in_a_row(right)))) for one, right in kinds]
    acceptance = share * sure + (1.0 - share) * unsure
    return DraftPath(limit, most, acceptance, prospects)


def _most_guesses_in_a_row(acceptance: float) -> int:
    """Return the number of guesses in a row after which the probability that all are right is below LEAST.

    acceptance: Probability that a guess is right if those before it are.
    """
    return 1 + int(math.log(LEAST) / math.log(acceptance)) if 0.0 < acceptance < 1.0 else 1


def reachable_rate(view: View, drafting: Drafting) -> float:
    """Return the price of time in this step, in tokens per second (see gain.py).

    It is the lead's rate, limited to what chains of the draft model's guesses can reach in these sessions.
    """
    paths, rate = drafting.paths.values(), view.rate
    if not paths:
        return rate
    acceptances = [path.acceptance for path in paths]
    limit = max([path.limit or path.most for path in paths])
    return min(rate, reachable(view.n_rows, drafting.seconds, acceptances, limit, drafting.td_s))


def reachable(
    n_rows: int, seconds: Sequence[float], acceptances: Sequence[float], limit: int, td_s: float
) -> float:
    """Return the most tokens per second that a step can make with one chain of guesses per session.

    Args:
        n_rows: Rows of the step without guesses.
        seconds: Seconds of a decode, by rows.
        acceptances: By session: probability that a guess is right if those before it are.
        limit: Maximum guesses of a session.
        td_s: Seconds of a round of guesses, one for each session.

    Returns:
        Tokens per second; infinity if no decode's time is known.
    """
    last, n = len(seconds) - 1, len(acceptances)
    if not (n and 0 < n_rows <= last and seconds[n_rows]):
        return math.inf
    rounds = min(limit, (last - n_rows) // n)
    each = [gain.chain(acceptance, rounds) for acceptance in acceptances]
    tokens = list(map(sum, zip([n_rows] * (rounds + 1), *each, strict=True)))
    taken_s = seconds[n_rows : n_rows + n * rounds + 1 : n]
    return gain.reached(tokens, [s + k * td_s for k, s in enumerate(taken_s)])


def is_needless(view: View, drafting: Drafting, i: int, n_asking: int) -> bool:
    """Return True if the i-th session has guesses of other sources, and needs none of the draft model.

    The condition: the other sources' guesses gain tokens, and at least as many as the draft model's guesses
    would gain after the cost of their drafting time.

    Args:
        view: The step.
        drafting: The model in the lead.
        i: Index of the session.
        n_asking: Sessions that share the time of each round of guesses.
    """
    offered = offer(view, i).probabilities
    if not offered:
        return False
    speculated, td_s = view.sessions[i], drafting.td_s
    acceptance = speculated.hits.mean(drafting.source) if speculated.allows(drafting.source) else 0.0
    limit = view.asks[i].limit
    rate = min(view.rate, reachable(view.n_rows, view.seconds, [acceptance] * n_asking, limit, td_s))
    seconds = view.seconds[view.n_rows :]
    _, there = gain.best(list(accumulate(offered, initial=0.0)), seconds, rate)
    drafted_s = [s + k * td_s / n_asking for k, s in enumerate(seconds)]
    _, own = gain.best(gain.chain(acceptance, limit), drafted_s, rate)
    return there > 0.0 and there >= own


def wanted(drafting: Drafting) -> tuple[list[int], list[int]]:
    """Return the sessions that get a guess now, and those of them whose guess is a probe (see _wanted())."""
    guess: list[int] = []
    probe: list[int] = []
    n = len(drafting.paths)
    for session, path in drafting.paths.items():
        if kind := _wanted(drafting, path, n):
            guess.append(session)
            if kind == "probe":
                probe.append(session)
    return guess, probe


def _wanted(drafting: Drafting, path: DraftPath, n: int) -> Literal["", "guess", "probe"]:
    """Return what the draft model does for a path: nothing (""), a guess, or a probe.

    A "probe" is one guess, made only to see whether it is right. A session has a limit of tokens that it may
    lose to wrong guesses. A probe is made if guesses pay only beyond this limit.

    Args:
        drafting: The model's state in this step.
        path: The session's guesses so far, and their limits.
        n: Sessions that share the time of a round of guesses.
    """
    left = path.limit - len(path.tokens)
    if not drafting.gate:
        return "guess" if left > 0 else ""
    if left > 0 and _pays(path, drafting, n, left):
        return "" if path.is_probe else "guess"
    if not path.tokens and path.limit < path.most and _pays(path, drafting, n, path.most):
        return "probe"
    return ""


def _pays(path: DraftPath, drafting: Drafting, n: int, limit: int) -> bool:
    """Return True if one more guess on this path pays, together with the best number of later ones.

    A guess always costs its round, but its row only if it is verified. If the next guess is sure, later ones
    are assumed to be sure, too; if it is unsure, they are assumed to be unsure. Later ones count, because
    four rows may pay although one does not, where the time of rows rises in steps. The method is that of
    gain.best(), stopped as soon as the answer is known.

    Args:
        path: The session's guesses so far.
        drafting: The model's state in this step.
        n: Sessions that share the time of a round of guesses.
        limit: Maximum further guesses.
    """
    seconds, rate, sure, worth = drafting.seconds, drafting.rate, path.sure, 0.0
    rows, td_s = drafting.n_rows + drafting.n_guesses, drafting.td_s / n
    last = min(limit, len(seconds) - 1 - rows)
    if last < 1:
        return False  # no row is free
    least, first_s = rate * td_s, seconds[rows] + td_s
    for share, gains in path.prospects:
        most = 0.0
        spent_s = -first_s
        for brought, row_s in zip(gains[1 : last + 1], seconds[rows + 1 :], strict=False):
            spent_s += td_s
            net = sure * brought - rate * (spent_s + row_s)
            if net > most:
                most = net
                if worth + share * most > least:
                    return True
        worth += share * most
    return False


def choose_reading(view: View, drafting: Drafting, late: Sequence[int]) -> tuple[list[int], list[int]]:
    """Choose the sessions whose unevaluated tokens the model in the lead evaluates now.

    The evaluation must take less time than the model has gained recently. If no session is ready for guesses,
    one session is chosen regardless, so that its guesses show what they gain.

    Args:
        view: The step.
        drafting: The model in the lead.
        late: Sessions with tokens that the model has not evaluated, those with the fewest first.

    Returns:
        The chosen sessions in which a guess then pays, and those in which no guess seems to pay.
    """
    n = len(drafting.paths)
    left_s = drafting.brought * view.undrafted_s if drafting.gate and view.n_sessions > 1 else math.inf
    n_ready = n - len(late)
    paying: list[int] = []
    spent_s = 0.0
    for session in late:
        if _wanted(drafting, drafting.paths[session], n):
            spent_s += drafting.behind_s(session)
            if spent_s < left_s or not (paying or n_ready):
                paying.append(session)
    while paying:
        n = n_ready + len(paying)
        going = [session for session in paying if _wanted(drafting, drafting.paths[session], n)]
        if len(going) == len(paying):
            break
        paying = going
    others = [session for session in late if session not in paying]
    return paying, others if drafting.tries else others[:1] if drafting.may_probe else []


def with_lost_rows(view: View, drafting: Drafting, wanting: Sequence[int]) -> list[float]:
    """Return the step's seconds by rows, plus the expected time to evaluate rows again after wrong guesses.

    Args:
        view: The step.
        drafting: The model in the lead.
        wanting: Indices of the sessions for which the model may guess.
    """
    rates = [view.sessions[i].hits.mean(drafting.source) for i in wanting]
    acceptance = sum(rates) / len(rates)
    curve = list(view.seconds)
    paths = [(acceptance**n, 0) for n in range(1, len(curve) - view.n_rows)]
    lost = gain.lost_rows(paths, [view.n_rows], view.policy.n_tail)
    for k, n_lost in enumerate(lost, start=view.n_rows + 1):
        curve[k] += gain.more_s(view.seconds, view.n_sessions, n_lost)
    return curve
