"""What a draft model in the lead may lose. One guess shows whether more rows may be at stake."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from server.engine.proposer import TimedStep
from server.estimators import Median
from server.llama.backend import Batch, Logits
from server.speculation.gating.costs import StepCosts
from server.speculation.groups import RENEWED, STAKED, Groups, StepCharge
from tests.server.speculation.test_groups import watched
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


def test_a_process_that_was_stopped_makes_no_guess_look_dear(scene: Scene):
    before = [scene.rate(request(max_tokens=100)) for _ in range(6)][-1]
    decode, n_left = scene.target.decode, [8]

    def stopped(batch: Batch) -> Logits:
        n_left[0] -= 1
        scene.clock.now += 0.0 if n_left[0] else 3600.0
        return decode(batch)

    scene.target.decode = stopped
    scene.rate(request(max_tokens=100))
    assert n_left[0] < 0, "it was stopped for an hour"
    assert scene.rate(request(max_tokens=100)) == pytest.approx(before, rel=0.1)


STEP = TimedStep(n_rows=1, n_cells=9, decode_s=1.0, step_s=1.0, n_tokens=1, n_sessions=1)


def serve(groups: Groups, curve: Sequence[float], net: float, n: int) -> tuple[float, int]:
    """n steps of one session. net: of each in which the draft model in the lead guesses. Returns what that
    is together, and in how many steps it guessed."""
    n_on = 0
    for _ in range(n):
        groups.serve(1, lambda _: curve)
        if groups.model_guesses:
            n_on += 1
            groups.drafted(1, net)
        groups.stepped(STEP, StepCharge())
    return n_on * net, n_on


DEAR, CHEAP = [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 1.1, 1.2]


def test_where_nothing_can_pay_a_draft_model_in_the_lead_rests():
    groups = Groups(None, Median(1))
    for curve in (CHEAP, DEAR, CHEAP):
        serve(groups, curve, 1.0, 2 * RENEWED)
        assert groups.model_guesses == (curve is CHEAP)
        assert groups.all_rest == (curve is DEAR)


def test_a_draft_model_in_the_lead_may_lose_what_it_could_bring_at_best():
    """At best 2.7 tokens are made in 1.2 + 2 td of steps. One whose guesses take too long has one try."""
    for td_s, lost in ((0.0, STAKED * (1 - 1.2 / 2.71)), (0.3, STAKED * (1 - 1.8 / 2.71)), (0.9, 0.0)):
        td = Median(1)
        td.observe(td_s)
        groups = Groups(None, td)
        net, n_on = serve(groups, CHEAP, -1.0, RENEWED)
        assert -net == pytest.approx(lost, abs=1.01)
        assert n_on < RENEWED
        assert not groups.model_guesses
        again = Groups(None, td)
        again.recall(groups.memory())
        assert serve(again, CHEAP, 1.0, 1)[1] == 0, "after a restart"
        assert serve(groups, CHEAP, 1.0, 100 * RENEWED)[1] > RENEWED, "it is tried again"


def test_where_steps_are_padded_guesses_may_pay_in_any_case():
    """Yet a draft model in the lead has no more at stake than it could bring."""
    groups = Groups(None, Median(1), lookup=True)
    watched(groups)
    groups.serve(2, lambda _: DEAR, padded=True)
    assert groups.model_guesses
    assert groups.lookup_guesses
    for _ in range(2):  # the first one costs more than nothing
        groups.serve(2, lambda _: DEAR, padded=True)
        groups.drafted(2, -0.1)
    assert not groups.model_guesses
    assert groups.model_brought() == 0.0
