"""Every kind of request with every drafter and fault: the client sees what it sees without drafts.

Compared are text, tokens, logprobs (bit by bit), finish reason and usage of two turns. Each case also asserts
that some guesses were accepted and some rejected and, with trees, that a tree of several leaves was decoded.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.errors import BackendError
from server.llama.backend import Batch, Logits
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from tests.fake_backend import FakeBackend, FakeModel
from tests.invariance.conversation import (
    KINDS,
    PLAIN,
    Kind,
    alone,
    asks_of,
    assert_right_and_wrong,
    assert_same,
    converse,
    in_scene,
)
from tests.invariance.scene import ALL, FAULTS, Fault, Scene, good, nothing, two
from tests.invariance.scripted import Shape

of_kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
at_temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])
of_shapes = pytest.mark.parametrize("shape", ["linear", "tree"])
ERRING = FakeModel(error=0.25, error_seed=8)


@of_kinds
@at_temperatures
@of_shapes
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_no_drafter_changes_anything_a_client_sees(
    fault: Fault, shape: Shape, temperature: float, kind: Kind
):
    scene = Scene(shape)
    during = fault(scene)
    clients = converse(asks_of(kind, temperature), lambda asks: in_scene(scene, asks, during))
    assert_same(clients, alone(kind, temperature))
    assert_right_and_wrong(clients)
    if shape == "tree":
        assert scene.backend.n_trees > 0
    if shape == "tree" and fault is good:
        assert scene.backend.n_crossings > 0


@of_kinds
@at_temperatures
def test_all_sources_together_change_nothing(temperature: float, kind: Kind):
    """The default policy runs gate and lookup, with late messages."""
    scene = Scene("tree", Policy(), every=2)
    during = two(scene)
    clients = converse(asks_of(kind, temperature), lambda asks: in_scene(scene, asks, during))
    assert_same(clients, alone(kind, temperature))
    assert_right_and_wrong(clients)


@of_kinds
@at_temperatures
@of_shapes
def test_gpu_overlap_changes_no_text(shape: Shape, temperature: float, kind: Kind):
    """Commits go out while the next step is decoded, and shadows keep what a step left in them."""
    scene = Scene(shape, Policy(lookup=False, overlaps=True))
    during = two(scene)
    clients = converse(asks_of(kind, temperature), lambda asks: in_scene(scene, asks, during))
    assert_same(clients, alone(kind, temperature))
    assert_right_and_wrong(clients)
    assert scene.backend.n_trees > 0, "in a padded step all shadows take part, in one with a chain, too"


@at_temperatures
def test_message_timing_changes_no_text(temperature: float):
    """Another thread delivers messages, so each run has another order."""
    scene = Scene("tree", Policy(), live=True)
    during = two(scene)
    for _ in range(3):
        clients = converse(asks_of(PLAIN, temperature), lambda asks: in_scene(scene, asks, during))
        assert [client.seen().text for client in clients] == [seen.text for seen in alone(PLAIN, temperature)]


@of_kinds
@at_temperatures
@of_shapes
def test_inner_draft_changes_no_text(shape: Shape, temperature: float, kind: Kind):
    leaves = 3 if shape == "tree" else 1
    policy = Policy(leaves=leaves, lookup=False, gate=False)
    scene = Scene(shape, policy, inline=DraftModel(FakeBackend(ERRING)))
    clients = converse(asks_of(kind, temperature), lambda asks: in_scene(scene, asks, nothing))
    assert_same(clients, alone(kind, temperature))
    assert_right_and_wrong(clients)
    assert (scene.backend.n_trees > 0) == (shape == "tree")


def alone_in_the_lead(_: Scene) -> Callable[[int], None]:
    return nothing


@of_kinds
@at_temperatures
@of_shapes
@pytest.mark.parametrize("fault", [alone_in_the_lead, two])
def test_prediction_block_changes_no_text(fault: Fault, shape: Shape, temperature: float, kind: Kind):
    policy = Policy(leaves=3 if shape == "tree" else 1, lookup=False, gate=False)
    scene = Scene(shape, policy, inline=ERRING)
    during = fault(scene)
    clients = converse(asks_of(kind, temperature), lambda asks: in_scene(scene, asks, during))
    assert_same(clients, alone(kind, temperature))
    assert_right_and_wrong(clients)
    assert "mtp" in {source for client in clients for source in client.stats.drafters}


class Failing(FakeBackend):
    """A draft model whose decodes fail after the first n_left."""

    n_left = 40

    def decode(self, batch: Batch) -> Logits:
        self.n_left -= 1
        if self.n_left < 0:
            raise BackendError("out of memory")
        return FakeBackend.decode(self, batch)


@of_kinds
def test_failing_draft_model_changes_nothing(kind: Kind):
    backend = Failing(ERRING)
    scene = Scene("tree", ALL, inline=DraftModel(backend))
    clients = converse(asks_of(kind, 1.0), lambda asks: in_scene(scene, asks, nothing))
    assert_same(clients, alone(kind, 1.0))
    assert_right_and_wrong(clients)
    assert backend.n_left < 0


@of_kinds
@at_temperatures
def test_lookups_change_no_text(temperature: float, kind: Kind):
    """The first turn is asked for again, so the lookup finds it."""
    scene = Scene("tree", Policy(gate=False))
    clients = converse(asks_of(kind, temperature), lambda asks: in_scene(scene, asks, nothing), again=True)
    assert_same(clients, alone(kind, temperature, again=True))
    assert_right_and_wrong(clients)
    assert {"lookup"} <= {source for client in clients for source in client.stats.drafters}
