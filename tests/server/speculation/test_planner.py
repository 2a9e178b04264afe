"""The planner's decisions against brute force on small cases."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.machines import REPACKED
from server.engine.proposer import Ask, Proposal
from server.speculation import inline_plan, planner
from server.speculation.hits import HitRates
from server.speculation.policy import Policy
from server.speculation.potential import SURE_SHARE, potential
from server.speculation.speculated import Speculated
from server.speculation.step import Drafting
from server.speculation.step_times import StepTimes
from server.speculation.view import View


def _curve(deltas: list[float]) -> list[float]:
    return [0.0, *itertools.accumulate([1.0, *deltas])]


def _offer(given: list[float]) -> list[float]:
    return list(itertools.accumulate(given, operator.mul))


CURVE = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7).map(_curve)
OFFER = st.lists(st.floats(0.01, 1.0), max_size=4).map(_offer)


def view(
    n_rows: int,
    n_sessions: int,
    seconds: Sequence[float],
    undrafted_s: float,
    rate: float,
    **others: Any,
) -> View:
    """Return a step that is neither padded nor stable, with these `others` of its fields."""
    asks = [Ask(i, 16) for i in range(n_sessions)]
    made = View(Policy(), asks, (), StepTimes(4), n_rows, seconds, undrafted_s, rate)
    return replace(made, **others)


def proposals(offers: Sequence[Sequence[float]], sources: Sequence[str] = ()) -> list[Proposal]:
    return [
        Proposal(
            tuple(range(len(offer))),
            tuple(range(-1, len(offer) - 1)),
            tuple(sources) or ("draft",) * len(offer),
            (),
            tuple(offer),
        )
        for offer in offers
    ]


def choose(
    curve: Sequence[float],
    n_rows: int,
    offers: Sequence[Sequence[float]],
    rate: float,
    again: Sequence[int] = (),
    n_tail: int = 0,
) -> list[int]:
    """Return how many guesses of each session are verified."""
    step = view(n_rows, len(offers), curve, curve[min(n_rows, len(curve) - 1)], rate)
    if again:
        step.policy = Policy(again=True, n_tail=n_tail)
        step.asks = [Ask(i, 16, n_pending=n) for i, n in enumerate(again)]
    return planner._counts(step, proposals(offers))


def gain(curve: list[float], n_rows: int, offers: list[list[float]], counts: list[int], rate: float) -> float:
    """Return the tokens gained by a choice, less what its time is worth."""
    gained = sum(sum(offer[:n]) for offer, n in zip(offers, counts, strict=True))
    return gained - rate * (curve[n_rows + sum(counts)] - curve[n_rows])


@given(CURVE, st.lists(OFFER, min_size=1, max_size=3), st.floats(0.0, 4.0))
def test_choice_is_the_best_one(curve: list[float], offers: list[list[float]], rate: float):
    n_rows = min(len(offers), len(curve) - 1)
    counts = choose(curve, n_rows, offers, rate)
    every = itertools.product(*(range(len(offer) + 1) for offer in offers))
    possible = [list(one) for one in every if n_rows + sum(one) < len(curve)]
    reached = max(
        (n_rows + gain(curve, n_rows, offers, one, 0.0)) / curve[n_rows + sum(one)] for one in possible
    )
    rate = min(rate, reached)
    best = max(gain(curve, n_rows, offers, one, rate) for one in possible)
    assert gain(curve, n_rows, offers, counts, rate) == pytest.approx(best, abs=1e-9)


def test_faster_text_bars_no_guesses():
    """Guesses double this step's tokens, and the former text made ten times as much."""
    assert choose([0.0, 1.0, 1.2, 1.4, 1.6], 1, [[0.9, 0.8, 0.7]], 10.0) == [3]


@pytest.mark.parametrize("right", [0.3, 0.5, 0.6, 0.7, 0.8])
def test_whole_groups_of_rows_are_verified(right: float):
    """Where four rows are multiplied at once, and no guess, three or seven are worth their time."""
    curve = StepTimes(9, {n: REPACKED.step_s(n) for n in range(1, 10)}).curve(0)
    chain = [right**k for k in range(1, 9)]
    found = {choose(curve, 1, [chain], rate / curve[1])[0] for rate in (1.0, 1.5, 2.0, 2.5, 3.0)}
    assert found <= {0, 1, 3, 7}
    assert (3 in found) is (right >= 0.5)
    assert (7 in found) is (right >= 0.8)


def lost(offer: list[float], n: int, pending: int) -> float:
    """Return the rows to be evaluated again after n guesses, by how many of them may be right."""
    reached = [1.0, *offer[:n], 0.0]
    return sum((reached[i] - reached[i + 1]) * (pending + i) for i in range(n))


@given(
    CURVE,
    st.lists(st.tuples(OFFER, st.integers(1, 5)), min_size=1, max_size=3),
    st.floats(0.0, 4.0),
)
def test_replayed_rows_count_as_cost(
    curve: list[float], sessions: list[tuple[list[float], int]], rate: float
):
    """Compare with all numbers of the most probable guesses, where each further row costs the same."""
    row_s = 0.25
    offers, pending = [offer for offer, _ in sessions], [n for _, n in sessions]
    n_rows = sum(pending)
    straight = [row_s * rows for rows in range(n_rows + len(curve))]
    counts = choose(straight, n_rows, offers, rate, pending)

    def value(counts: list[int]) -> float:
        again = sum(map(lost, offers, counts, pending))
        return gain(straight, n_rows, offers, counts, rate) - rate * row_s * again

    ranked = sorted((-p, i) for i, offer in enumerate(offers) for p in offer)[: len(straight) - 1 - n_rows]
    every = [[sum(i == j for _, i in ranked[:k]) for j in range(len(offers))] for k in range(len(ranked) + 1)]
    assert value(counts) == pytest.approx(max(map(value, every)), abs=1e-9)


def test_risky_session_guesses_sure_tokens():
    straight = [0.5 + 0.1 * rows for rows in range(40)]
    assert choose(straight, 12, [[0.7]], 1.0) == [1]
    assert choose(straight, 12, [[0.7]], 1.0, [1]) == [1]
    assert choose(straight, 12, [[0.7]], 1.0, [12]) == [1]
    assert choose(straight, 12, [[0.5]], 1.0, [12]) == [0]
    assert choose(straight, 12, [[0.5]], 1.0) == [1]


def test_guesses_in_the_tail_cost_nothing_later():
    """One guess beyond a tail of two costs as much as a chain of one without a tail."""
    curve = [0.0, 1.0, 1.25, 1.5, 1.75, 2.0]
    assert choose(curve, 1, [[0.6, 0.4, 0.2]], 1.2, [1]) == [1]
    assert choose(curve, 1, [[0.6, 0.4, 0.2]], 1.2, [1], 2) == [2]


def test_widths_snap_to_machine_steps():
    stairs = [0.0, 1.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    assert choose(stairs, 1, [[0.9, 0.5, 0.2, 0.1, 0.05]], 1.2) == [3]
    assert choose(stairs, 1, [[0.4, 0.2, 0.1]], 1.2) == [0]


def test_without_a_rate_everything_is_worth_trying():
    assert choose([0.0, 1.0, 9.0, 20.0], 1, [[0.5, 0.1, 0.1]], 0.0) == [2]


def throughput(curve: list[float], acceptance: float, td: float, depth: int) -> float:
    """Return tokens per second of a synchronous scheme that always drafts `depth` tokens."""
    expected = sum(acceptance**i for i in range(depth + 1))
    return expected / (curve[1 + depth] + depth * td)


def drafting(curve: Sequence[float], td_s: float, rate: float = math.inf) -> Drafting:
    """Return a model in the lead whose guesses take td_s."""
    made = Drafting("draft", td_s, True, 0.0, float, curve)
    made.rate = rate
    return made


def session(acceptance: float, allowance: float = 1e9) -> Speculated:
    """Return a session for which the model in the lead is right with this probability, however sure it is."""
    outlook = 0.5, acceptance, acceptance
    hits = Mock(**{"outlook.return_value": outlook, "mean.return_value": acceptance})
    account = SimpleNamespace(allowance=allowance)
    return cast(Speculated, SimpleNamespace(hits=hits, account=account, allows=bool))


def depth_drafted(curve: Sequence[float], acceptance: float, td_s: float, rate: float) -> int:
    """Return how many guesses in a row the model in the lead is asked for."""
    most = len(curve) - 2
    step = view(1, 1, curve, curve[1], rate, sessions=[session(acceptance)])
    inline = drafting(curve, td_s, rate)
    inline.paths[0] = path = inline_plan.draft_path(step, inline, 0, most)
    while inline_plan._wanted(inline, path, 1):
        path.tokens.append(7)
        path.sure *= acceptance
        inline.n_guesses += 1
    return len(path.tokens)


@given(st.floats(0.05, 0.97), st.floats(0.001, 0.5), CURVE)
def test_drafting_reaches_the_best_depth(a: float, td: float, curve: list[float]):
    """At the best scheme's own rate, the rule keeps drafting until that scheme's depth.

    The gain there is zero by definition of the rate; at a slightly lower rate it must not stop before.
    """
    depths = range(len(curve) - 1)
    best = max(depths, key=lambda depth: throughput(curve, a, td, depth))
    rate = throughput(curve, a, td, best) * 0.999
    depth = depth_drafted(curve, a, td, rate)
    if a**best > 0.01:
        assert throughput(curve, a, td, depth) >= throughput(curve, a, td, best) * 0.97 or depth >= best


@given(st.floats(0.05, 0.97), st.floats(0.001, 0.5), CURVE, st.integers(0, 8))
def test_reachable_rate_is_best_depth(a: float, td: float, curve: list[float], limit: int):
    depths = range(min(limit, len(curve) - 2) + 1)
    best = max(throughput(curve, a, td, depth) for depth in depths)
    assert inline_plan.reachable(1, curve, [a], limit, td) == pytest.approx(best)


def test_several_sessions_share_reachable_rates():
    curve = [0.0, 1.0, 1.5, 2.0, 2.25, 2.5]
    rates = [2 / 1.5, (2 + 0.9 + 0.5) / (2.25 + 0.1)]
    assert inline_plan.reachable(2, curve, [0.9, 0.5], 8, 0.1) == pytest.approx(max(rates))
    assert inline_plan.reachable(2, curve, [0.9, 0.5], 0, 0.1) == pytest.approx(rates[0])


@pytest.mark.parametrize("curve", [[], [0.0], [0.0, 0.0, 0.0]])
def test_without_times_anything_is_reachable(curve: list[float]):
    assert inline_plan.reachable(1, curve, [0.5], 8, 0.1) == math.inf


@pytest.mark.parametrize(
    ("n_rows", "allowance", "td_s", "n"),
    [
        (1, 0.4, 0.0, 0),
        (1, 0.5, 0.0, 2),
        (1, 0.9, 0.0, 2),
        (1, 0.9, 0.3, 1),
        (1, 2.0, 0.0, 9),
        (3, 0.6, 0.0, 0),
        (3, 0.7, 0.0, 9),
    ],
)
def test_guesses_take_no_longer_than_the_allowance(n_rows: int, allowance: float, td_s: float, n: int):
    """Nine guesses are the maximum, and rows are left for fewer."""
    curve = [0.0, 1.0, 1.5, 1.5, 2.5]
    step = view(n_rows, 1, curve, curve[n_rows], 1.0, sessions=[session(0.9, allowance)])
    assert inline_plan.draft_path(step, drafting(curve, td_s), 0, 9).limit == n


def test_without_times_all_guesses_are_afforded():
    step = view(1, 1, [0.0] * 5, 0.0, 1.0, sessions=[session(0.9, 0.0)])
    assert inline_plan.draft_path(step, drafting([0.0] * 5, 0.1), 0, 3).limit == 3


@pytest.mark.parametrize(
    ("td_s", "offered", "n_asking", "needless"),
    [
        pytest.param(0.2, [0.9, 0.8], 1, True, id="a guess takes a fifth of a step"),
        pytest.param(0.01, [0.9, 0.8], 1, False, id="guesses are quick"),
        pytest.param(0.2, [0.9, 0.8], 20, False, id="sessions share the time of a round"),
        pytest.param(0.2, [], 1, False, id="there are none"),
        pytest.param(0.2, [0.1], 1, False, id="not worth its row"),
    ],
)
def test_existing_guesses_spare_new_ones(
    td_s: float, offered: list[float], n_asking: int, needless: bool, monkeypatch: pytest.MonkeyPatch
):
    """Of two existing guesses 1.7 are right. The draft model's would bring 3.2 at most."""
    curve, hits = [0.0, 1.0, *[1.2] * 16], HitRates()
    for i in range(200):
        hits.observe_best("draft", 200, hit=i % 4 > 0)
    one = cast(Speculated, SimpleNamespace(hits=hits, allows=bool))
    monkeypatch.setattr(inline_plan, "offer", Mock(return_value=proposals([offered])[0]))
    step = view(1, 1, curve, 1.0, 2.5, sessions=[one])
    assert inline_plan.is_needless(step, drafting(curve, td_s), 0, n_asking) is needless


def test_trial_guess_is_always_verified():
    step = view(1, 2, [0.0, *[float(n) for n in range(1, 9)]], 1.0, 1.0)
    offers = proposals([[0.1] * 3] * 2, ["a", "b", "b"])
    assert planner._counts(step, offers) == [0, 0]
    step.on_trial = ["b"]
    assert planner._counts(step, offers) == [2, 0], "one row more shows it"


def test_guess_must_cover_its_python():
    step = view(1, 1, [0.0, *[0.001] * 5], 0.001, 1000.0, guess_s=40e-6)
    worth = step.overhead
    assert planner._counts(step, proposals([[1.1 * worth, 0.9 * worth]])) == [1]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_guess_pays_its_width_share(n: int):
    assert n * view(1, 1, [5.0] * 5, 4.0, 1.0).guess_cost(n) == pytest.approx(0.25)


def test_rows_evaluated_again_cost_plain_steps():
    """One of the two sessions has three rows."""
    seconds = [0.0, 10.0, 12.0, 14.0, 16.0]
    assert view(2, 2, seconds, 12.0, 1.0).again_cost() == 0.0
    assert 2 * view(4, 2, seconds, 16.0, 1.0).again_cost() == pytest.approx(2 * (16.0 - 12.0) / 12.0)


@pytest.mark.parametrize(
    ("sources", "n_drafted"),
    [((), 0), (("draft",), 1), (("draft", "lookup"), 1), (("lookup", "grammar", "prediction"), 0)],
)
def test_only_guesses_of_models_are_charged(sources: tuple[str, ...], n_drafted: int):
    one, n = SimpleNamespace(session=SimpleNamespace(bounds=SimpleNamespace(n_min=0))), len(sources)
    step = view(1, 1, [0.0, 1.0, 1.5, 2.0, 2.5], 1.0, 1.0, sessions=[cast(Speculated, one)])
    plan = planner.finished(step, proposals([[0.5] * n], sources), [n])
    assert sum((plan.charges or {}).values()) == pytest.approx(n_drafted * step.guess_cost(n) if n else 0.0)


@pytest.mark.parametrize("most", [38])
def test_cheap_rows_pay_many_sessions(most: int):
    seconds = [0.0, *(1 + 0.1 * n for n in range(200))]
    paying = [n for n in range(1, 80) if potential(seconds, n) >= 1.05]
    assert paying == list(range(1, most + 1))


def test_potential_uses_best_guess_count():
    a = SURE_SHARE
    assert potential([0, 1, 1, 1, 1], 1) == pytest.approx(1 + a + a**2 + a**3)
    assert potential([0, 1, 1, 9, 9], 1) == pytest.approx(1 + a)
    assert potential([0, 1, 2, 3, 4], 2) == 1.0
    assert potential([0, 1, 2], 2) == 1.0, "no room"
    assert potential([0, 0, 0, 0], 1) == 1.0, "nothing known"
    assert potential([0, 1, 1, 1], 1, 0.5) == pytest.approx(max((1 + a) / 1.5, (1 + a + a**2) / 2))
