"""Width-stable replies: all decode steps have one width, with any guesses.

tests/model/test_width_stable.py shows that a real model's logits are equal bit by bit then.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine.request import Exactness, Speculation
from server.engine.scheduler import Limits
from tests.invariance.conversation import (
    KINDS,
    Kind,
    alone,
    asks_of,
    assert_right_and_wrong,
    assert_same,
    in_scene,
)
from tests.invariance.scene import FAULTS, Fault, Scene
from tests.support import PROMPT

WIDTH = 6


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.n == 1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("fault", FAULTS[:3], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("server", ["default", "width-stable"])
def test_stable_steps_share_one_width(server: Exactness, fault: Fault, kind: Kind):
    """The server's exactness sets it, or the request's."""
    asked = None if server == "width-stable" else "width-stable"
    asks = [
        ask._replace(request=replace(ask.request, speculation=Speculation(exactness=asked)))
        for ask in asks_of(kind, 1.0)
    ]
    limits = Limits(n_batch=64, n_chunk=16, stable_width=WIDTH, exactness=server)
    scene = Scene("tree", limits=limits)
    clients = in_scene(scene, asks, fault(scene))
    assert_same(clients, alone(kind, 1.0)[:1])
    assert_right_and_wrong(clients)
    assert scene.backend.n_trees == 0
    assert scene.backend.widths == [len(PROMPT), *[WIDTH] * (len(scene.backend.widths) - 1)]


def test_request_may_refuse_stable_width():
    [ask] = asks_of(KINDS[0], 1.0)
    ask = ask._replace(request=replace(ask.request, speculation=Speculation(exactness="default")))
    scene = Scene("tree", limits=Limits(n_batch=64, exactness="width-stable"))
    clients = in_scene(scene, [ask], FAULTS[0](scene))
    assert_same(clients, alone(KINDS[0], 1.0)[:1])
    assert scene.backend.n_trees > 0
    assert len(set(scene.backend.widths)) > 3
