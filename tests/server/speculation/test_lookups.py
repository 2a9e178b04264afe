"""What lookups index, in which time, and what time they are charged for."""

from __future__ import annotations

import pytest

from server.engine.proposer import TimedStep
from server.speculation.groups import LOOKUP, Groups, StepCharge
from server.speculation.lookups import INDEX_SHARE, INDEXED, TOKEN_S, Lookups, index
from server.speculation.speculated import Speculated
from tests.server.speculation.test_speculated import conversation
from tests.server.speculation.test_speculator import Clock


def test_lookups_of_many_sessions_share_what_a_step_has_time_for():
    sessions = [conversation(100) for _ in range(4)]
    index(sessions, step_s=0.0)
    assert [one.n_indexed for one in sessions] == [INDEXED, 0, 0, 0]
    index(sessions, step_s=150 * TOKEN_S / INDEX_SHARE)
    assert [one.n_indexed for one in sessions] == [100, 100, 150 - 136, 0]
    index(sessions, step_s=1.0)
    assert not any(one.is_behind for one in sessions)


@pytest.mark.parametrize("overlaps", [False, True])
def test_indexing_is_charged_unless_a_gpu_decodes_meanwhile(overlaps: bool, monkeypatch: pytest.MonkeyPatch):
    clock, session = Clock(), conversation(100)
    lookups = Lookups({1: session}, clock, guesses=True, overlaps=overlaps)

    def slow(_: Speculated, most: int) -> int:
        clock.now += 1.0
        return most

    monkeypatch.setattr(Speculated, "index", slow)
    lookups.index(0.0)
    assert lookups.taken_s() == (0.0 if overlaps else 1.0)
    assert lookups.taken_s() == 0.0


@pytest.mark.parametrize(("guesses", "alone"), [(False, False), (True, False), (True, True)])
def test_choosing_is_charged_where_nobody_else_guesses_and_searching_where_somebody_does(
    guesses: bool, alone: bool
):
    clock = Clock()
    lookups = Lookups({}, clock, guesses=guesses, overlaps=False)
    lookups.alone = alone
    clock.now = 1.0
    lookups.took(0.25, alone=True)  # choosing
    lookups.took(0.5, alone=False)  # searching
    assert lookups.taken_s() == ((0.75 if alone else 0.5) if guesses else 0.0)


def test_lookups_that_rest_index_nothing_but_what_ended():
    session = conversation(10)
    lookups = Lookups({1: session}, Clock(), guesses=False, overlaps=False)
    session.lookup = lookups.open("")
    lookups.index(0.0)
    assert session.is_behind
    session.session.tokens.extend([1, 2, 3, 4])  # pyright: ignore
    lookups.close(session)
    lookups.index(0.0)
    other = conversation(0)
    other.lookup = lookups.open("")
    other.session.tokens.extend([1, 2, 3])  # pyright: ignore
    other.index(3)
    other.look_up(1)
    assert other.tree.n_below == 1


@pytest.mark.parametrize(("looked", "rest"), [(0.01, False), (0.05, True)])
def test_lookups_rest_where_searching_takes_more_than_they_bring(looked: float, rest: bool):
    """One of 32 steps has a right guess of theirs, whose row takes a tenth of a step."""
    groups = Groups(None, lookup=True)
    for i in range(1000):
        groups.serve(1, list)
        if i % 32 == 31 and groups.lookup_guesses:
            groups.count({LOOKUP: (1, 1)}, 0.1)
        groups.stepped(TimedStep(1, 9, 1.0, 1.0, 1, 1), StepCharge(looked=looked))
    assert groups.lookup_guesses is not rest
