"""A group that costs more than it brings rests, for the numbers of sessions where it does."""

from __future__ import annotations

import json
from functools import partial

import pytest

from server.speculation.account import BASELINE_FRACTION, LOSS, Account, GroupAccount
from server.speculation.drafter_host import CREDIT, OF_GROUP
from server.speculation.speculated import IN_SESSION

WAIT = 16
OF_INLINE = partial(Account, CREDIT)


def run(group: GroupAccount, net: float, steps: int, n_sessions: int = 1) -> tuple[float, int]:
    """Return the group's net tokens over the steps, and in how many it guessed.

    net: of each step in which it guessed.
    """
    total, n_on = 0.0, 0
    for _ in range(steps):
        account = group.of(n_sessions)
        if account.is_active:
            n_on += 1
            total += net
            account.book(net / n_sessions)
        else:
            account.wait()
    return total, n_on


@pytest.mark.parametrize("cost", [0.02, 0.1, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("wait", [0, WAIT])
def test_whatever_it_costs_one_percent_is_lost(cost: float, wait: int):
    steps = 20_000
    total, _ = run(GroupAccount(OF_GROUP if wait else OF_INLINE), -cost, steps)
    assert 0.0 < -total <= LOSS * steps + CREDIT + cost


def until(group: GroupAccount, net: float, *, guesses: bool) -> int:
    """Return the steps until the group guesses, or rests."""
    n = 0
    while group.of(1).is_active is not guesses:
        run(group, net, 1)
        n += 1
    return n


def test_useless_group_rests_by_loss():
    group = GroupAccount(OF_INLINE)
    for _ in range(6):
        n_lost = until(group, -1.0, guesses=False)
        assert until(group, -1.0, guesses=True) == pytest.approx(n_lost / LOSS, rel=0.05)


def test_harmful_group_rests_after_credit():
    _, n_on = run(GroupAccount(OF_INLINE), -0.5, 500)
    assert n_on <= CREDIT / 0.5 + 1


def test_undrafted_steps_are_measured_first():
    group = GroupAccount(OF_GROUP)
    assert group.of(1).is_baseline
    assert run(group, 1.0, WAIT - 1) == (0.0, 0)
    steps = round(10 * WAIT / BASELINE_FRACTION)
    _, n_on = run(group, 1.0, steps)
    assert (1 - BASELINE_FRACTION) * steps < n_on < (1 - 0.7 * BASELINE_FRACTION) * steps


def test_helping_group_returns():
    group = GroupAccount(OF_INLINE)
    run(group, -0.5, 500)
    assert not group.of(1).is_active
    assert not group.of(1).is_baseline
    _, n_on = run(group, 1.0, 3000)
    assert n_on > 1500


def test_hard_text_costs_next_nothing():
    """Models rest in a hard text after a few lost tokens; easy texts before it are no reason to lose more."""
    for n_easy in (0, 1, 5):
        group = GroupAccount(OF_INLINE)
        run(group, 2.0, 60 * n_easy)
        run(group, -0.4, 12)
        _, n_on = run(group, 2.0, 60)
        assert n_on == 60


def test_old_gains_do_not_count():
    group = GroupAccount(OF_INLINE)
    run(group, 3.0, 5000)
    _, n_on = run(group, -0.5, 1000)
    assert n_on < 210


def test_rare_large_gains_count():
    """Lookups lose a little in most steps; once in a hundred, a repetition gains thirty tokens at once."""
    group, n_on = GroupAccount(OF_INLINE), 0
    for _ in range(20):
        run(group, 30.0, 1)
        n_on += run(group, -0.2, 99)[1]
    assert n_on == 20 * 99


def test_free_useless_group_continues():
    _, n_on = run(GroupAccount(OF_INLINE), 0.0, 5000)
    assert n_on == 5000


def test_each_number_of_sessions_has_its_credit():
    group = GroupAccount(OF_INLINE)
    for _ in range(3):
        for n_sessions, net in ((1, 1.0), (4, -1.0), (16, -8.0)):
            run(group, net, 800, n_sessions)
    for n_sessions, net, helps in ((16, -8.0, False), (1, 1.0, True), (4, -1.0, False)):
        _, n_on = run(group, net, 80, n_sessions)
        assert (n_on > 35) == helps


def test_new_session_count_copies_fewer():
    group = GroupAccount(OF_INLINE)
    run(group, -1.0, 100, n_sessions=2)
    assert not group.of(30).is_active
    assert group.of(1).is_active, "fewer sessions than any that lost"


def test_gains_do_not_extend_losses():
    group = GroupAccount(OF_INLINE)
    run(group, 3.0, 200, n_sessions=1)
    _, n_on = run(group, -4.0, 50, n_sessions=4)
    assert n_on == CREDIT + 1


def test_losses_survive_a_restart():
    before, after = GroupAccount(OF_GROUP), GroupAccount(OF_GROUP)
    run(before, -1.0, 60)
    after.recall(json.loads(json.dumps(before.memory())))
    _, n_on = run(after, -1.0, round(CREDIT / LOSS) - 60)
    assert n_on == 0


def test_restart_measures_steps_anew():
    before, after = GroupAccount(OF_GROUP), GroupAccount(OF_GROUP)
    run(before, 1.0, 100)
    after.recall(before.memory())
    assert run(after, 1.0, WAIT) == (0.0, 0)
    assert run(after, 1.0, 1) == (1.0, 1)


@pytest.mark.parametrize(
    "memory",
    [None, [], {"x": 1}, {"1": True}, {"1": [1]}, {"-1": 1}, {"1": -1}, {"1": 1.5}, {"1": None}, "text"],
)
def test_a_memory_that_is_none_is_ignored(memory: object):
    group = GroupAccount(OF_INLINE)
    group.recall(memory)
    assert group.memory() == {}


def rested(account: Account) -> int:
    """Return the steps until the source may work again."""
    n = 0
    while account.paused:
        account.wait()
        n += 1
    return n


def test_account_needs_evidence_to_pause():
    account = Account(patience=3.0)
    for _ in range(2):
        account.book(-1.0)
        assert account.is_active
    account.book(-1.0)
    assert account.paused


def test_pause_limits_loss_to_percent():
    for n_sessions in (1, 4):
        account = Account()
        account.book(-0.5, n_sessions=n_sessions)
        assert rested(account) == pytest.approx(0.5 / (LOSS * n_sessions), abs=1)


def test_after_a_pause_an_account_begins_anew():
    account = IN_SESSION()
    account.book(3.0, evidence=24.0)
    assert account.allowance == account.per_step + 3.0
    while not account.paused:
        account.book(-1.0)
    rested(account)
    assert (account.net, account.allowance, account.has_evidence) == (0.0, account.per_step, False)


def test_gains_are_forgotten_but_losses_are_not():
    account = Account(stake=9.0)
    account.book(-1.0)
    for _ in range(150):
        account.book(0.0)
    assert account.net == -1.0
    account.book(6.0)
    for _ in range(500):
        account.book(0.0)
    assert 0.0 < account.net < 0.1
