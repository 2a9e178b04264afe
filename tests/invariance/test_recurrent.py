"""A model whose sequences cannot be trimmed: with any drafter, a client sees what it sees without drafts.

n_cached is not compared: a reply that ends on rejected guesses goes back to an earlier state, so that its
last tokens are not cached. test_matrix.py tests models that can be trimmed.
"""

from __future__ import annotations

from functools import partial

import pytest

from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from tests.fake_backend import FakeBackend, FakeModel
from tests.invariance.conversation import (
    KINDS,
    PLAIN,
    Ask,
    Client,
    Kind,
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
from tests.invariance.scene import (
    Fault,
    RecurrentScene,
    Scene,
    good,
    lying,
    nothing,
    reordered,
    stops_and_continues,
    two,
)
from tests.invariance.scripted import TRUTH
from tests.support import PROMPT, Harness, request

of_kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
at_temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])
as_without = partial(assert_same, but="n_cached")
ERRING = FakeModel(error=0.25, error_seed=8)


@of_kinds
@at_temperatures
@pytest.mark.parametrize("fault", [good, lying, reordered, stops_and_continues], ids=lambda f: f.__name__)
def test_no_drafter_changes_anything_a_client_sees(fault: Fault, temperature: float, kind: Kind):
    scene = RecurrentScene()
    during = fault(scene)
    clients = converse(asks_of(kind, temperature), lambda asks: in_scene(scene, asks, during))
    as_without(clients, alone(kind, temperature))
    assert_right_and_wrong(clients)
    assert scene.backend.n_returns > 0


@of_kinds
@at_temperatures
def test_gate_and_lookup_change_nothing(temperature: float, kind: Kind):
    scene = RecurrentScene(policy=Policy(), every=2)
    during = two(scene)
    clients = converse(asks_of(kind, temperature), lambda asks: in_scene(scene, asks, during), again=True)
    as_without(clients, alone(kind, temperature, again=True))
    assert_right_and_wrong(clients)
    assert scene.backend.n_returns > 0


@of_kinds
@at_temperatures
def test_inner_draft_changes_no_text(temperature: float, kind: Kind):
    policy = Policy(lookup=False, gate=False)
    scene = RecurrentScene(policy=policy, inline=DraftModel(FakeBackend(ERRING)))
    clients = converse(asks_of(kind, temperature), lambda asks: in_scene(scene, asks, nothing))
    as_without(clients, alone(kind, temperature))
    assert_right_and_wrong(clients)
    assert scene.backend.n_returns > 0


@at_temperatures
def test_four_conversations_change_nothing(temperature: float):
    asks = [
        Ask(request((*PROMPT * 3, 97 + i), temperature=temperature, seed=40 + i, max_tokens=100))
        for i in range(4)
    ]

    def turns(harness: Harness, scene: Scene | None = None) -> list[Client]:
        during = good(scene) if scene else nothing
        return converse(asks, lambda turn: in_scene(scene, turn, during) if scene else play(harness, turn))

    expected = [client.seen() for client in turns(Harness(FakeBackend(TRUTH)))]
    scene = RecurrentScene()
    clients = turns(scene.harness, scene)
    as_without(clients, expected)
    assert_right_and_wrong(clients)


@at_temperatures
def test_stop_string_ends_accepted_run(temperature: float):
    """Tokens after the stop cannot be trimmed: the next turn begins from an earlier state."""
    text = alone(PLAIN, temperature)[0].text
    [plain] = asks_of(PLAIN, temperature)
    overrun = 0
    for at in range(20, 68, 8):
        asks = [plain._replace(stops=stops_in(text, at))]
        scene = RecurrentScene()
        during = good(scene)
        clients = converse(asks, lambda turn: in_scene(scene, turn, during, late=0))  # noqa: B023 - used now
        as_without(clients, without_drafts(asks))
        assert clients[0].reply.stopped
        overrun += clients[0].stats.n_predicted > clients[0].reply.n_predicted
    assert overrun > 0
