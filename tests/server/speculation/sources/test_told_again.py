"""A whole session is told again to a drafter that missed some of it, and not as often as it asks for."""

from __future__ import annotations

import pytest

from server.speculation.policy import Policy
from server.speculation.sources.drafter_record import MAX_RATE, RESENT_TOKENS_PER_S
from server.speculation.speculator import Speculator
from server.speculation.wire.messages import ROOT, Draft, Open, Want
from tests.server.speculation.driving import committed
from tests.server.speculation.sources.test_remote import Scene
from tests.server.speculation.test_speculator import Clock


@pytest.mark.parametrize("lost", [False, True])
def test_repeated_wants_are_not_repeated(lost: bool):
    """Each request of a few bytes would resend a whole conversation, 2,000 times as many.

    lost: by drafts that go on from guesses that nobody made.
    """
    scene = Scene()
    drafter = scene.add()
    scene.open(1, tuple(range(100)) * 64)
    [opened] = drafter.opened()
    for i in range(1000):
        draft = Draft("drafter", opened, 7000, i, 1000, (ROOT,), (5,), b"\xff")
        scene.remote.received(draft if lost else Want("drafter", opened, 0))
    scene.settle()
    assert (
        1 <= sum(isinstance(message, Open) for message in drafter.messages[1:]) <= 2 * (1 + MAX_RATE // 100)
    )


def test_long_sessions_keep_their_drafts():
    """One whole session a second is resent, however long it is."""
    clock = Clock()
    scene = Scene(clock=clock)
    drafter = scene.add()
    scene.open(1, (7,) * 2 * RESENT_TOKENS_PER_S)
    [opened] = drafter.messages
    assert isinstance(opened, Open)
    draft = Draft(
        "drafter", opened.session, 2 * RESENT_TOKENS_PER_S, opened.chain, 1000, (ROOT,), (5,), b"\xff"
    )
    for second in range(1, 3):
        for _ in range(3):
            scene.remote.received(Want("drafter", opened.session, 0))
        scene.remote.received(draft)
        scene.settle()
        assert len(drafter.messages) == 1 + second
        [record] = scene.remote.drafters()
        assert record.counts == {"fresh": second}
        clock.now += 1.0


def test_resending_is_limited_per_second():
    scene = Scene()
    scene.add()
    scene.settle()
    [record] = scene.remote.drafters()
    assert record.within_rate(1.0)
    assert [record.may_resend_tokens(200_000) for _ in range(3)] == [True, True, False]
    assert record.within_rate(2.0)
    assert record.may_resend_tokens(200_000)


def test_looping_drafter_is_told_rarely():
    """It may guess eight tokens ahead."""
    scene = Scene(clock=Clock())
    scene.speculator = Speculator(Policy(gate=False), remote=scene.remote)  # nobody rests
    drafter = scene.add()
    scene.open(1)
    [session] = scene.speculator._sessions.values()  # pyright: ignore[reportPrivateUsage]
    for n_tokens in range(17):
        for i in range(20):
            base = session.tree.position + 3
            draft = Draft("drafter", session.wire_id, base, i, 1000, (ROOT,), (5,), b"\xff")
            scene.remote.received(draft)
        scene.settle()
        assert sum(isinstance(message, Open) for message in drafter.messages) == 2 + n_tokens // 8
        session.session.tokens.append(7)  # pyright: ignore
        committed(scene.speculator, 1)
