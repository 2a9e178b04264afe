"""Decide how many guesses are verified, how wide the step is, and which sources are asked. Pure.

Where a model in the lead may guess, inline_plan.py decides its rounds of guesses before plan() is called.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate, chain

from server.engine.proposer import Proposal
from server.speculation import gain
from server.speculation.drafter_host import DrafterHost
from server.speculation.ledger import Ledger
from server.speculation.shape_times import PLAIN, NextShape
from server.speculation.sources.drafter_record import JOINS, WAITS, DrafterRecord
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.step import NO_MODEL, NOBODY, DraftPlan, Guessers
from server.speculation.view import View, offer

FASTER = "the lead is faster without it now"
TOO_DEAR = "no guess can pay: to check one takes too long now"


def plan(view: View) -> DraftPlan:
    """Return the plan of a step, from the guesses in its sessions' trees."""
    proposals = [offer(view, i) for i in range(len(view.asks))]
    width, is_wider = PLAIN, None
    if view.shape is not None:
        width, is_wider = _choose_width(view, view.shape, proposals)
    return finished(view, proposals, _counts(view, proposals), width, is_wider)


def finished(
    view: View,
    proposals: Sequence[Proposal],
    counts: Sequence[int],
    width: int = PLAIN,
    is_wider: bool | None = None,
) -> DraftPlan:
    """Return the plan that verifies the first counts[i] guesses of proposals[i].

    A session with fewer guesses than its minimum (n_min) gets none.

    Args:
        view: The step.
        proposals: The guesses of each session.
        counts: Number of guesses to verify, for each session.
        width: Rows to which the step is padded; PLAIN: no padding.
        is_wider: True if a wider step is best when the cost of changing width is ignored; None: not compared.
    """
    taken: list[Proposal] = []
    for one, proposal, n in zip(view.sessions, proposals, counts, strict=True):
        taken.append(proposal.take(n if n >= one.session.bounds.n_min else 0))
    n = sum(map(len, taken))
    cost = view.guess_cost(n) if n else 0.0
    plan = DraftPlan(taken, width, is_shape=width != PLAIN)
    plan.n_guesses = n
    plan.guessers, plan.is_wider = view.guessers, is_wider
    plan.guess_cost, plan.is_stable = cost, view.is_stable
    again = view.again_cost() if view.policy.again else 0.0
    if cost or again:
        charges: dict[int, float] = {}
        for ask, proposal in zip(view.asks, taken, strict=True):
            n_drafted = len(proposal) - sum(map(proposal.sources.count, NO_MODEL))
            if charge := cost * n_drafted + again * (ask.n_pending - 1):
                charges[ask.session] = charge
        plan.charges = charges
    return plan


# -- who guesses ----------------------------------------


def choose_guessers(
    ledger: Ledger, n_active: int, remote: RemoteDrafters | None, *, has_inline: bool
) -> Guessers:
    """Return the sources that may guess in the next step, and the drafters to pause or resume.

    Args:
        ledger: The accounts.
        n_active: Sessions that have a slot or wait for one.
        remote: The drafters; read only.
        has_inline: True if there is a model in the lead.
    """
    drafters, may_draft = (remote.drafting, remote.may_draft) if remote else (False, False)
    if not ledger.policy.gate:
        return Guessers(ledger.policy.lookup, has_inline, drafters, has_inline or may_draft)
    lookup = inline = False
    if ledger.may_pay and ledger.inline:
        inline = not ledger.inline.of(n_active).paused
    if ledger.may_pay and ledger.lookup:
        account = ledger.lookup.of(n_active)
        # what steps take without lookups is seen while models pause, too
        lookup = not account.paused or (account.is_baseline and (inline or drafters))
    pauses: Sequence[tuple[DrafterRecord, str]] = ()
    if ledger.machines:
        pauses = [one for machine in ledger.machines.values() for one in _pauses(ledger, machine, n_active)]
    elif not (lookup or inline or drafters or may_draft):
        return NOBODY
    return Guessers(lookup, inline, drafters, inline or may_draft, pauses)


def _pauses(ledger: Ledger, machine: DrafterHost, n_active: int) -> list[tuple[DrafterRecord, str]]:
    """Return which of a machine's drafters to pause, with the reason, or to resume, with the reason ""."""
    reason = "" if ledger.may_pay else TOO_DEAR
    if machine.account and not reason and not (account := machine.account.of(n_active)).is_active:
        reason = WAITS if account.is_baseline else FASTER
    reason_new = reason
    if machine.new and reason != WAITS:
        reason, reason_new = reason or (JOINS if machine.alone else ""), ""
    wanted = [(record, reason_new if record in machine.new else reason) for record in machine.records]
    return [(record, why) for record, why in wanted if why != record.rests]


def _choose_width(view: View, shape: NextShape, proposals: Sequence[Proposal]) -> tuple[int, bool]:
    """Choose one of a few widths for the step, on machines where a change of width costs more than rows do.

    Also set the view's cost of rows (seconds, change_s) for this width.

    Returns:
        The width, and True if a wider step would be best without the cost of a change of width.
    """
    shapes, overhead = view.times.shapes, view.overhead
    ranked = sorted(chain.from_iterable([proposal.probabilities for proposal in proposals]), reverse=True)
    worth = [probability - overhead for probability in ranked if probability > overhead]
    width, is_wider = shapes.choose(shape, worth, view.rate)
    if width == PLAIN:
        view.seconds = [view.undrafted_s] * (view.n_rows + 1)
    else:
        view.seconds, view.change_s = [shapes.steady[width]] * (width + 1), shapes.charge_s(width, shape)
    return width, is_wider


def _counts(view: View, proposals: Sequence[Proposal]) -> list[int]:
    """Return the number of guesses to verify, for each session: the most probable guesses of all sessions.

    All are verified if the policy has no gate, or if they are free because the step's width is fixed. Only
    numbers of rows with a known time are considered.
    """
    if view.is_stable or not view.policy.gate:
        return list(map(len, proposals))
    overhead = 0.0 if view.policy.again else view.overhead
    if len(proposals) == 1 and not view.policy.again:
        probabilities = proposals[0].probabilities
        worth = [one - overhead for one in probabilities] if overhead else probabilities
        counts = [_best_count(view, worth)] if worth else [0]
    else:
        counts = _shared_counts(view, proposals, overhead)
    if view.on_trial and view.shape is None:
        _raise_for_trial(view.on_trial, proposals, counts)
    return counts


def _shared_counts(view: View, proposals: Sequence[Proposal], overhead: float) -> list[int]:
    """Return the number of guesses to verify, for each session: the best guesses of all sessions together.

    Args:
        view: The step.
        proposals: The guesses of each session, best first.
        overhead: Tokens that the Python time of a guess costs.
    """
    counts = [0] * len(proposals)
    ranked = sorted(
        [(overhead - probability, i) for i, one in enumerate(proposals) for probability in one.probabilities]
    )
    if ranked:
        lost_s = _lost_s(view, ranked) if view.policy.again else ()
        for _, i in ranked[: _best_count(view, [-negative for negative, _ in ranked], lost_s)]:
            counts[i] += 1
    return counts


def _best_count(view: View, worth: Sequence[float], lost_s: Sequence[float] = ()) -> int:
    """Return the number of guesses, taken best first, whose verification gains the most tokens.

    Args:
        view: The step.
        worth: Expected tokens of each guess, best first.
        lost_s: By number of guesses: expected seconds in which the next step evaluates rows again.
    """
    n_rows, seconds = view.n_rows, view.seconds
    tokens = list(accumulate(worth, initial=float(n_rows)))
    taken_s = [seconds[min(n_rows, len(seconds) - 1)], *seconds[n_rows + 1 :]]
    rate = min(view.rate, gain.reached(tokens, taken_s))
    if lost_s:
        taken_s = [taken + lost for taken, lost in zip(taken_s, lost_s, strict=False)]
    return gain.best(tokens, taken_s, rate)[0]


def _lost_s(view: View, ranked: Sequence[tuple[float, int]]) -> list[float]:
    """Return, by number of guesses, the expected seconds in which the next step evaluates rows again.

    Args:
        view: The step.
        ranked: For each guess, best first: its probability, negated, and its session's index.
    """
    n_pending = [ask.n_pending for ask in view.asks]
    lost = gain.lost_rows([(-negative, i) for negative, i in ranked], n_pending, view.policy.n_tail)
    return [0.0, *[gain.more_s(view.seconds, len(n_pending), n) for n in lost]]


def _raise_for_trial(on_trial: Collection[str], proposals: Sequence[Proposal], counts: list[int]) -> None:
    """Raise `counts` so that the first guess of a drafter on trial is verified, whether it pays or not."""
    for i, proposal in enumerate(proposals):
        first = next((at for at, source in enumerate(proposal.sources) if source in on_trial), None)
        if first is not None:
            counts[i] = max(counts[i], first + 1)
            return
