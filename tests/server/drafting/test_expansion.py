"""Which guesses are made next: what a row brings beside what it costs, and what a mistake costs meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from server.drafting.draft_session import DraftSession
from server.drafting.expansion import DecodeTimes, Leaf, Slack
from tests.drafters.scene import open_

SESSION = DraftSession(open_())


def n_best(times: DecodeTimes, *gains: float) -> int:
    best = times.best(Leaf(gain, SESSION) for gain in gains)
    assert [leaf.gain for leaf in best] == sorted(gains, reverse=True)[: len(best)]
    return len(best)


@pytest.mark.parametrize(
    ("gains", "n"),
    [
        ((0.9, 0.5, 0.1), 2),
        ((0.1, 0.5, 0.9), 2),
        ((0.9, 0.2), 1),
        ((0.5, 0.5, 0.5), 3),
        ((0.01,), 1),
        ((), 0),
    ],
)
def test_rows_maximise_tokens_per_second(gains: Sequence[float], n: int):
    assert n_best(DecodeTimes({1: 1.0, 2: 1.3, 3: 1.6}), *gains) == n


def test_all_leaves_where_rows_cost_nothing():
    assert n_best(DecodeTimes({}), *[0.1] * 9, 0.9) == 10


def test_unmeasured_rows_are_extrapolated():
    times = DecodeTimes({1: 1.0, 3: 2.0})
    assert [times.seconds(n) for n in (3, 4, 7)] == [2.0, 2.5, 4.0]


def test_the_time_to_make_a_guess_counts():
    times = DecodeTimes({1: 1.0, 2: 1.1})
    assert n_best(times, 0.9, 0.2) == 2
    times.guess_s.observe(0.2)
    assert n_best(times, 0.9, 0.2) == 1


def test_slack_floor_is_half_a_decode():
    slack = Slack()
    assert slack.floor(0.001, 1) == math.inf
    for i in range(400):
        slack.committed(i % 2, 0.010)  # a mistake every 20 ms
    assert slack.floor(0.001, 1) == pytest.approx(0.025, rel=0.05)
    assert slack.floor(0.0005, 4) == pytest.approx(0.05, rel=0.05)
