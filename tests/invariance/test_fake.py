"""Drafters never change the text: four conversations at once, ends inside a step, hostile drafters.

test_matrix.py tests every kind of request with every fault.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine import engine
from server.engine.events import Committed
from server.speculation.wire.presence import VocabularyCard
from tests.invariance.conversation import (
    PLAIN,
    Ask,
    alone,
    asks_of,
    assert_right_and_wrong,
    assert_same,
    converse,
    in_scene,
    play,
    stops_in,
    without_drafts,
)
from tests.invariance.scene import ALL, CARD, FAULTS, Fault, Scene, good, lying, nothing
from tests.invariance.scene import LEAD as LEAD  # for others
from tests.invariance.scripted import ScriptedDrafter
from tests.support import PROMPT, Harness, request


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_drafter_changes_any_of_four_conversations(fault: Fault, temperature: float):
    asks = [
        Ask(request((*PROMPT, 97 + i), temperature=temperature, seed=40 + i, max_tokens=100))
        for i in range(4)
    ]
    harness = Harness()
    expected = [client.seen() for client in play(harness, asks)]
    scene = Scene("tree")
    clients = in_scene(scene, asks, fault(scene))
    assert_same(clients, expected)
    assert_right_and_wrong(clients)
    assert scene.backend.n_trees > 0

    # The next turn of each conversation, from the same caches.
    again = [
        Ask(request((*one.request.prompt, *seen.tokens, 10), max_tokens=20))
        for one, seen in zip(asks, expected, strict=True)
    ]
    expected = [client.seen() for client in play(harness, again)]
    assert_same(in_scene(scene, again, nothing), expected)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guesses_during_decode_change_nothing(
    fault: Fault, temperature: float, monkeypatch: pytest.MonkeyPatch
):
    """Messages arrive only while a GPU decodes, in answer to commits sent before the decode."""
    monkeypatch.setattr(engine, "MANY_SESSIONS", 1)
    asks = [
        Ask(request((*PROMPT, 97 + i), temperature=temperature, seed=40 + i, max_tokens=100))
        for i in range(4)
    ]
    expected = [client.seen() for client in play(Harness(), asks)]
    scene = Scene("tree", replace(ALL, overlaps=True), every=1000)

    def arrive() -> None:
        while scene.pool.pump():
            pass

    scene.harness.engine.meanwhile = arrive
    during, remote = fault(scene), scene.proposer._remote  # pyright: ignore[reportPrivateUsage]

    def before_step(step: int) -> None:
        during(step)
        assert remote
        assert not remote._arrived, "grafted during the decode"  # pyright: ignore[reportPrivateUsage]

    clients = in_scene(scene, asks, before_step)
    assert_same(clients, expected)
    assert_right_and_wrong(clients)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_token_ends_accepted_run(temperature: float):
    ended_by_draft = 0
    for seed in range(12):
        asks = [Ask(request((*PROMPT, seed), temperature=temperature, seed=seed, max_tokens=600))]
        scene = Scene()
        [client] = in_scene(scene, asks, good(scene))
        assert_same([client], [one.seen() for one in play(Harness(), asks)])
        last = client.outcome.events[-2]
        assert isinstance(last, Committed)
        if client.outcome.finished.reason == "stop" and last.sources[-1] == "scripted":
            ended_by_draft += last.n_drafted > len(last.tokens)
    assert ended_by_draft > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_string_ends_accepted_run(temperature: float):
    text = alone(PLAIN, temperature)[0].text
    [plain] = asks_of(PLAIN, temperature)
    overrun = 0
    for at in range(20, 68, 4):
        asks = [plain._replace(stops=stops_in(text, at))]
        scene = Scene("tree")
        during = good(scene)
        clients = converse(asks, lambda turn: in_scene(scene, turn, during, late=0))  # noqa: B023 - used now
        expected = without_drafts(asks)
        assert_same(clients, expected, but="n_cached")
        for client, other in zip(clients, expected, strict=True):  # an accepted last token is cached already
            assert 0 <= client.seen().n_cached - other.n_cached <= 1
        assert clients[0].reply.stopped
        overrun += clients[0].stats.n_predicted > clients[0].reply.n_predicted
    assert overrun > 0


def test_other_vocabulary_is_refused_with_reason():
    scene = Scene()
    card = VocabularyCard(CARD.size, CARD.bos, CARD.eos, tuple(block ^ 1 for block in CARD.blocks))
    drafter = scene.add(ScriptedDrafter(scene.pool, card))
    [client] = in_scene(scene, [Ask(request())], nothing)
    assert client.stats.n_drafted == 0
    assert str(drafter.refused).startswith("token texts differ between ids 0 and 1023; ")
    [record] = scene.proposer.drafters()
    assert record.refusal == drafter.refused


def test_liar_is_counted_not_honest():
    scene = Scene()
    [client] = in_scene(scene, [Ask(request())], lying(scene))
    [record] = scene.proposer.drafters()
    assert record.counts["invalid"] > 0
    assert record.counts["stale"] > 0
    assert record.counts["accepted"] == client.stats.drafters["liar"].accepted
