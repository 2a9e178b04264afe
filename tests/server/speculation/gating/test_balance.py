"""Drafters rest in a session that they cost more than they bring it."""

from __future__ import annotations

from server.speculation.gating.balance import KNOWN, RESTS, TRIED, Balance, Overhead


def n_until_resting(balance: Balance, n_accepted: float, n_lost: float) -> int:
    for i in range(1, 1000):
        balance.step(n_accepted, n_lost)
        if balance.resting:
            return i
    return 0


def test_drafters_that_cost_more_than_they_bring_rest_once_that_is_known():
    assert n_until_resting(Balance(), 0.0, 0.05) == TRIED
    assert n_until_resting(Balance(), 0.1, 0.05) == 0


def test_each_rest_in_a_row_takes_twice_as_long_up_to_a_bound():
    balance, lengths = Balance(), list[int]()
    for _ in range(6):
        n_until_resting(balance, 0.0, 0.05)
        lengths.append(0)
        while balance.resting:
            balance.step(0.0, 0.0)
            lengths[-1] += 1
    assert lengths == [64, 128, 256, 512, 512, 512]


def test_after_a_good_part_a_rest_is_short_again():
    balance = Balance()
    for _ in range(2):
        n_until_resting(balance, 0.0, 0.05)
        while balance.resting:
            balance.step(0.0, 0.0)
    for _ in range(TRIED):
        balance.step(2.0, 0.5)
    n_until_resting(balance, 0.0, 0.5)
    n_rest = 0
    while balance.resting:
        balance.step(0.0, 0.0)
        n_rest += 1
    assert n_rest == RESTS[0]


def test_a_text_that_turns_hard_is_noticed_within_a_few_lines():
    balance = Balance()
    for _ in range(500):
        balance.step(1.0, 0.3)
    assert 0 < n_until_resting(balance, 0.0, 0.1) < 100


def test_drafters_cost_nothing_until_steps_without_them_are_known():
    overhead = Overhead()
    for _ in range(KNOWN):
        overhead.observe(0.0005, 1, told=True, guessing=False)
    assert overhead.seconds(1, 1, guessing=False) == 0.0
    for _ in range(KNOWN):
        overhead.observe(0.0002, 1, told=False, guessing=False)
    assert abs(overhead.seconds(1, 1, guessing=False) - 0.0003) < 1e-9
    for _ in range(KNOWN):
        overhead.observe(0.0001, 1, told=True, guessing=True)
    assert overhead.seconds(1, 1, guessing=True) == 0.0


def test_the_first_steps_of_a_process_are_no_measure_of_what_drafters_cost():
    overhead = Overhead()
    for _ in range(KNOWN):
        overhead.observe(0.0002, 1, told=False, guessing=False)
    for outside_s in (0.015, 0.003, *[0.0004] * KNOWN):
        overhead.observe(outside_s, 1, told=True, guessing=True)
    assert abs(overhead.seconds(1, 1, guessing=True) - 0.0002) < 1e-9


def test_what_drafters_cost_is_borne_by_the_sessions_that_they_have():
    overhead = Overhead()
    for _ in range(KNOWN):
        overhead.observe(64 * 0.00002, 64, told=False, guessing=False)
        overhead.observe(64 * 0.00005, 64, told=True, guessing=False)
    assert abs(overhead.seconds(64, 64, guessing=False) - 0.00003) < 1e-9
    assert abs(overhead.seconds(64, 4, guessing=False) - 16 * 0.00003) < 1e-9
    assert overhead.seconds(64, 0, guessing=False) == 0.0


def test_steps_of_few_sessions_are_no_measure_of_those_of_many():
    overhead = Overhead()
    for _ in range(KNOWN):
        overhead.observe(0.0004, 1, told=False, guessing=False)
        overhead.observe(64 * 0.00005, 64, told=True, guessing=False)
    assert overhead.seconds(64, 4, guessing=False) == 0.0
