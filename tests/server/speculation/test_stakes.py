"""What a draft model in the lead may lose. One guess shows whether more rows may be at stake."""

from __future__ import annotations

import pytest

from server.engine.proposer import StepTiming
from server.estimators import Median
from server.llama.backend import Batch, Logits
from server.speculation.drafter_host import BASELINE_STEPS
from server.speculation.ledger import STAKED
from server.speculation.potential import potential
from server.speculation.shape_times import ShapeTimes
from server.speculation.step_times import StepTimes
from tests.server.speculation.ledger_scene import Taught
from tests.server.speculation.test_speculator import Scene
from tests.support import request

# Milliseconds of a step by its rows: a model of 400M in Q8_0 on two cores. The first guess costs 1.7 tokens,
# more than a session may lose at first, and seven guesses cost 2.8
MS = {1: 14.0, 2: 38.0, 3: 46.0, 4: 54.0, 5: 60.0, 6: 65.0, 7: 70.0, 8: 53.0, 9: 59.0}
WIDE = 8
PLAIN_RATE = 1000 / MS[1]


@pytest.fixture
def scene() -> Scene:
    scene = Scene(error=0.0, td_s=0.00065, times=StepTimes(64, {n: ms / 1e3 for n, ms in MS.items()}))
    target = scene.target
    decode = target.decode

    def timed(batch: Batch) -> Logits:
        target.timing = MS.get(len(batch), 0.0) / 1e3, 0.0  # prompts take nothing
        return decode(batch)

    target.decode = timed
    return scene


def test_right_guesses_get_verified(scene: Scene):
    assert scene.rate(request(max_tokens=100)) > 1.5 * PLAIN_RATE
    assert {WIDE, WIDE + 1} & set(scene.target.widths)


def test_wrong_guesses_stay_unverified(scene: Scene):
    scene.drafts.confused = 1.0
    rates = [scene.rate(request((*b"another text", i), max_tokens=100)) for i in range(3)]
    assert min(rates) > 0.95 * PLAIN_RATE
    assert not {WIDE, WIDE + 1} & set(scene.target.widths)


def test_stopped_process_keeps_guesses_cheap(scene: Scene):
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


N_STEPS = 64
DEAR, CHEAP = [1.0, 2.5, 4.0], [1.0, 1.1, 1.2]  # seconds of a step by rows, from one on


def run(taught: Taught, net: float, n: int) -> tuple[float, int]:
    """Take n steps of one session; return their net tokens and in how many the draft model guessed.

    net: of each step in which it guesses.
    """
    n_on = 0
    for _ in range(n):
        guesses = taught.serve().inline
        n_on += guesses
        n_tokens = 1 + max(0, round(net))
        more_s = n_tokens - 1 - net  # that the guesses took, where a plain step takes a second
        timing = StepTiming(1, 9, 1.0, 1.0 + more_s, n_tokens if guesses else 1, 1)
        taught.learn(spent_s=max(1e-9, more_s) if guesses else 0.0, timing=timing)
    return n_on * net, n_on


@pytest.mark.parametrize("curve", [CHEAP, DEAR])
def test_hopeless_inner_draft_pauses(curve: list[float]):
    taught = Taught(td=Median(1), seconds=curve)
    run(taught, 1.0, 2 * N_STEPS)
    guessers = taught.serve()
    assert guessers.inline == (curve is CHEAP)
    assert guessers.nobody == (curve is DEAR)


def test_inner_draft_loses_at_most_potential():
    """A source whose guesses take too long has one try."""
    for td_s in (0.0, 0.3, 0.9):
        td = Median(1)
        td.observe(td_s)
        taught = Taught(td=td, seconds=CHEAP)
        net, n_on = run(taught, -1.0, N_STEPS)
        lost = taught.ledger.stake
        assert lost == pytest.approx(
            STAKED * (1 - 1 / potential(taught.ledger.times.curve(0), 1, td_s)), rel=0.1
        )
        assert -net == pytest.approx(lost, abs=1.01)
        assert n_on < N_STEPS
        assert not taught.serve().inline
        again = Taught(td=td, seconds=CHEAP)
        again.ledger.recall(taught.ledger.memory())
        assert run(again, 1.0, 1)[1] == 0, "after a restart"
        assert run(taught, 1.0, 100 * N_STEPS)[1] > N_STEPS, "it is tried again"


def test_padded_steps_allow_any_guess():
    taught = Taught(td=Median(1), lookup=True, seconds=DEAR)
    taught.ledger.times.shapes = ShapeTimes({1: 1.0, 4: 4.0})
    taught.warm_up(BASELINE_STEPS)
    guessers = taught.serve(2)
    assert guessers.inline
    assert guessers.lookup
