"""Which drafters guess for a session."""

from __future__ import annotations

import pytest

from server.speculation.sources.assignment import MOST, assign, speed


@pytest.mark.parametrize("acceptance", [0.0, 5e-324, 1.0])
@pytest.mark.parametrize("td_s", [0.0, 1e-6, 5e3])
def test_any_time_and_acceptance_can_be_ranked(acceptance: float, td_s: float):
    speeds = {"usual": speed(1e-3, 0.7), "odd": speed(td_s, acceptance)}
    assert sorted(assign(1, speeds)) == ["odd", "usual"]


def test_sessions_go_to_the_faster_drafters():
    speeds = {"slow": speed(0.02, 0.8), "fast": speed(0.001, 0.8)}
    assert assign(1, speeds) == ["fast", "slow"]
    assert assign(1, speeds, taken=MOST - 1) == ["fast"]
    assert assign(1, {}, taken=0) == []


def test_equals_share_the_sessions_and_a_session_stays_where_it_was():
    equals = {f"d{i}": speed(0.001, 0.8) for i in range(4)}
    first = [assign(session, equals, taken=MOST - 1)[0] for session in range(200)]
    assert all(first.count(id) > 20 for id in equals)
    backwards = dict(reversed(equals.items()))
    assert first == [assign(session, backwards, taken=MOST - 1)[0] for session in range(200)]
