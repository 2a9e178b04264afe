"""A group that costs more than it brings rests, for the numbers of sessions where it does."""

from __future__ import annotations

import json

import pytest

from server.speculation.gating.credit import CREDIT, FEWER, FORGOTTEN, LOOK, LOSS, Credits

WAIT = 16


def run(credits: Credits, net: float, steps: int, n_sessions: int = 1) -> tuple[float, int]:
    """Tokens that the group brought beyond its cost in that many steps, net of each in which it guessed; and
    in how many it did."""
    total, n_on = 0.0, 0
    for _ in range(steps):
        credits.serve(n_sessions)
        brought = net if credits.guesses else 0.0
        n_on += credits.guesses
        total += brought
        if credits.guesses:
            credits.step(n_sessions, brought)
        else:
            credits.look()
    return total, n_on


@pytest.mark.parametrize("cost", [0.02, 0.1, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("wait", [0, WAIT])
def test_whatever_it_costs_one_percent_is_lost(cost: float, wait: int):
    steps = 20_000
    total, _ = run(Credits(wait), -cost, steps)
    assert 0.0 < -total <= LOSS * steps + CREDIT + cost


def until(credits: Credits, net: float, *, guesses: bool) -> int:
    """Steps until the group guesses, or rests."""
    n = 0
    while credits.guesses is not guesses:
        run(credits, net, 1)
        n += 1
    return n


def test_a_group_that_never_helps_rests_longer_each_time_but_not_for_ever():
    credits, rests = Credits(), list[int]()
    for _ in range(6):
        until(credits, -1.0, guesses=False)
        rests.append(until(credits, -1.0, guesses=True))
    assert [round(rest / rests[0]) for rest in rests] == [1, 2, 4, 8, 8, 8]
    run(credits, 3.0, 10)
    n_lost = until(credits, -1.0, guesses=False)
    assert until(credits, -1.0, guesses=True) == pytest.approx(n_lost / LOSS, rel=0.05)


def test_a_group_that_hurts_rests_once_its_credit_is_spent():
    _, n_on = run(Credits(), -0.5, 500)
    assert n_on <= CREDIT / 0.5 + 1


def test_what_steps_take_without_it_is_seen_first_and_now_and_then():
    credits = Credits(WAIT)
    assert credits.looks
    assert run(credits, 1.0, WAIT - 1) == (0.0, 0)
    steps = round(10 * WAIT / LOOK)
    _, n_on = run(credits, 1.0, steps)
    assert (1 - LOOK) * steps < n_on < (1 - 0.7 * LOOK) * steps


def test_steps_with_prompts_show_nothing():
    credits = Credits(WAIT)
    for _ in range(10 * WAIT):
        credits.serve(1)
    assert not credits.guesses
    run(credits, 1.0, WAIT)
    assert run(credits, 1.0, 1) == (1.0, 1)


def test_a_group_that_begins_to_help_is_taken_back():
    credits = Credits()
    run(credits, -0.5, 500)
    assert not credits.guesses
    assert not credits.looks
    _, n_on = run(credits, 1.0, 3000)
    assert n_on > 1500


def test_a_text_that_is_hard_to_guess_costs_the_next_one_nothing():
    """Models rest in it once they have lost a few tokens; easy texts before it are no reason to lose more."""
    for n_easy in (0, 1, 5):
        credits = Credits()
        run(credits, 2.0, 60 * n_easy)
        run(credits, -0.4, 12)
        _, n_on = run(credits, 2.0, 60)
        assert n_on == 60


def test_what_it_brought_long_ago_does_not_count():
    credits = Credits()
    run(credits, 3.0, 5000)
    _, n_on = run(credits, -0.5, 1000)
    assert n_on < 3.0 / FORGOTTEN


def test_a_group_that_costs_and_brings_nothing_goes_on():
    _, n_on = run(Credits(), 0.0, 5000)
    assert n_on == 5000


def test_each_number_of_sessions_has_its_credit():
    credits = Credits()
    for _ in range(3):
        for n_sessions, net in ((1, 1.0), (4, -1.0), (16, -8.0)):
            run(credits, net, 800, n_sessions)
    for n_sessions, net, helps in ((16, -8.0, False), (1, 1.0, True), (4, -1.0, False)):
        _, n_on = run(credits, net, 80, n_sessions)
        assert (n_on > 35) == helps


def test_a_new_number_of_sessions_begins_as_that_of_fewer():
    credits = Credits()
    run(credits, -1.0, 100, n_sessions=2)
    run(credits, -1.0, 1, n_sessions=30)
    assert not credits.guesses
    run(credits, -1.0, FEWER, n_sessions=1)
    assert credits.guesses, "fewer sessions than any that lost"


def test_what_it_brought_fewer_sessions_is_not_what_more_may_lose():
    credits = Credits()
    run(credits, 3.0, 200, n_sessions=1)
    _, n_on = run(credits, -4.0, 50, n_sessions=4)
    assert n_on == CREDIT + 1


def test_fewer_sessions_count_after_a_while_or_a_moment_without_any():
    credits = Credits()
    run(credits, -16.0, 100, n_sessions=16)
    run(credits, -1.0, FEWER - 1, n_sessions=1)
    assert not credits.guesses
    credits.serve(16)
    credits.serve(0)
    credits.serve(1)
    assert credits.guesses


def test_what_a_group_lost_is_known_after_a_restart():
    before, after = Credits(WAIT), Credits(WAIT)
    run(before, -1.0, 60)
    after.recall(json.loads(json.dumps(before.memory())))
    _, n_on = run(after, -1.0, round(CREDIT / LOSS) - 60)
    assert n_on == 0


def test_what_steps_take_is_seen_anew_after_a_restart():
    before, after = Credits(WAIT), Credits(WAIT)
    run(before, 1.0, 100)
    after.recall(before.memory())
    assert run(after, 1.0, WAIT) == (0.0, 0)
    assert run(after, 1.0, 1) == (1.0, 1)


@pytest.mark.parametrize(
    "memory",
    [None, [], {"x": 1}, {"1": True}, {"1": [1]}, {"-1": 1}, {"1": -1}, {"1": 1.5}, {"1": None}, "text"],
)
def test_a_memory_that_is_none_is_ignored(memory: object):
    credits = Credits()
    credits.recall(memory)
    assert credits.memory() == {}
