"""Where a few rows are dear and many are not: one guess is made to see whether more may be at stake."""

from __future__ import annotations

import pytest

from server.llama.backend import Batch, Logits
from server.speculation.gating.costs import StepCosts
from tests.server.speculation.test_speculator import Scene
from tests.support import request

# Milliseconds of a step by its rows: a model of 400M in Q8_0 on two cores. The first guess costs 1.7 tokens,
# more than a session may lose at first, and seven guesses cost 2.8
MS = {1: 14.0, 2: 38.0, 3: 46.0, 4: 54.0, 5: 60.0, 6: 65.0, 7: 70.0, 8: 53.0, 9: 59.0}
WIDE = 8
PLAIN_RATE = 1000 / MS[1]


@pytest.fixture
def scene() -> Scene:
    scene = Scene(error=0.0, td_s=0.00065)
    target, costs = scene.target, StepCosts(64, {n: ms / 1e3 for n, ms in MS.items()})
    scene.speculator.pricing.costs = scene.speculator.pricing.calm = costs
    decode = target.decode

    def timed(batch: Batch) -> Logits:
        target.timing = MS.get(len(batch), 0.0) / 1e3, 0.0  # prompts take nothing
        return decode(batch)

    target.decode = timed
    return scene


def test_once_guesses_are_seen_to_be_right_they_are_verified(scene: Scene):
    assert scene.rate(request(max_tokens=100)) > 1.5 * PLAIN_RATE
    assert {WIDE, WIDE + 1} & set(scene.target.widths)


def test_guesses_that_are_seen_to_be_wrong_are_not(scene: Scene):
    scene.drafts.confused = 1.0
    rates = [scene.rate(request((*b"another text", i), max_tokens=100)) for i in range(3)]
    assert min(rates) > 0.95 * PLAIN_RATE
    assert not {WIDE, WIDE + 1} & set(scene.target.widths)
