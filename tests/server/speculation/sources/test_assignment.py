"""Which drafters guess for a session."""

from __future__ import annotations

import pytest

from server.speculation.account import LOSS
from server.speculation.hits import MEAN
from server.speculation.sources.assignment import APART, MAX_PER_SESSION, Yield, assign


@pytest.mark.parametrize("share", [0.0, 5e-324, 1.0])
def test_any_share_can_be_ranked(share: float):
    assert sorted(assign(1, {"usual": MEAN, "odd": share})) == ["odd", "usual"]


def test_sessions_go_to_better_drafters():
    shares = {"less": 0.7, "more": 0.7 + APART}
    assert assign(1, shares) == ["more", "less"]
    assert assign(1, shares, taken=MAX_PER_SESSION - 1) == ["more"]
    assert assign(1, {}, taken=0) == []


def test_equals_share_sessions_stably():
    equals = {f"d{i}": 0.8 for i in range(4)}
    first = [assign(session, equals, taken=MAX_PER_SESSION - 1)[0] for session in range(200)]
    assert all(first.count(id) > 20 for id in equals)
    backwards = dict(reversed(equals.items()))
    assert first == [assign(session, backwards, taken=MAX_PER_SESSION - 1)[0] for session in range(200)]


def test_assumed_share_is_soon_measured():
    brings = Yield(window=64)
    assert brings.share() == pytest.approx(MEAN)
    assert brings.share(assumed=0.1) == pytest.approx(0.1)
    brings.observe(0, 32)
    assert brings.share() < 0.1
    for _ in range(8):
        brings.observe(24, 32)
    assert brings.share() == pytest.approx(0.75, abs=0.01)
    brings.observe(0, 1000)
    assert brings.share() < 0.01


def test_missed_tokens_are_forgotten():
    brings = Yield(window=64)
    brings.observe(0, 32)
    for n in (int(31 / LOSS), int(2 / LOSS)):
        assert brings.share() < 0.1
        brings.wait(n)
    assert brings.share() == pytest.approx(MEAN)
    brings.observe(0, 32)
    brings.wait(int(31 / LOSS))
    assert brings.share() < 0.1, "the wait begins anew"
