"""Steps that are padded since fewer rows take longer: the text is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from server.engine.proposer import Plan, Proposer, Upcoming
from server.engine.request import Exactness, GenerationRequest, Speculation
from server.engine.scheduler import Limits
from server.llama.backend import Batch, Logits
from server.sampling.params import SamplingParams
from server.speculation.policy import Policy
from server.speculation.speculator import Speculator
from server.speculation.step_times import StepTimes
from tests.fake_backend import FakeBackend, FakeModel
from tests.server.engine.test_branches import TreeOracle
from tests.server.speculation.test_speculator import Clock
from tests.support import Harness, OracleProposer

N = 20
ODD_S = {n: (3.0 if n % 4 else 1.0) + n / 10 for n in range(1, 17)} | {1: 0.5}
ODD = StepTimes(16, ODD_S)
"""Rows that are no multiple of four take longer than the next one that is, but for a single one."""


class PaddedOracle(TreeOracle):
    def plan(self, step: Upcoming) -> Plan:
        plan = super().plan(step)
        n_rows = step.n_rows + sum(map(len, plan.proposals))
        plan.width = ODD.padded(n_rows, step.n_cells) if n_rows > 1 and step.may_pad() else 0
        return plan


class EightAreDear(OracleProposer):
    def plan(self, step: Upcoming) -> Plan:
        plan = super().plan(step)
        n_rows = step.n_rows + sum(map(len, plan.proposals))
        plan.width = 12 if n_rows == 8 and step.may_pad() else 0
        return plan


def toy() -> FakeBackend:
    return FakeBackend(FakeModel(sharpness=4.0, eog_rate=0.0), n_seqs=12)


def asked(n: int) -> list[GenerationRequest]:
    sampling = [SamplingParams(0.7, seed=i) for i in range(n)]
    return [GenerationRequest(list(f"more, {i}".encode()), s, max_tokens=N) for i, s in enumerate(sampling)]


def run(backend: FakeBackend, proposer: Proposer, *asks: GenerationRequest) -> list[tuple[int, ...]]:
    harness = Harness(backend, proposer, limits=Limits(draft_max=8, leaves=3))
    return [outcome.tokens for outcome in harness.run(*asks)]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_plain_steps_are_padded(n: int):
    """Two steps that are not padded confirm what the start measured."""
    expected = run(toy(), Proposer(), *asked(n))
    clock = Clock()

    class Timed(FakeBackend):
        def decode(self, batch: Batch) -> Logits:
            clock.now += ODD_S[min(len(batch), len(ODD_S))]
            return super().decode(batch)

    backend = Timed(FakeModel(sharpness=4.0, eog_rate=0.0), n_seqs=12)
    proposer = Speculator(Policy(lookup=False, max_rows=16), times=StepTimes(16, ODD_S), clock=clock)
    harness = Harness(backend, proposer, limits=Limits(draft_max=0), clock=clock)
    assert [outcome.tokens for outcome in harness.run(*asked(n))] == expected
    prompts = len(asked(n)[0].prompt)
    widths = [width for width in backend.widths if width < prompts]
    unpadded = [width for width in widths if width != 4]
    assert unpadded == {1: [1] * len(widths), 2: [2] * 2, 3: [3] * 2, 4: []}[n]


def test_steps_with_guesses_are_padded():
    expected = run(toy(), Proposer(), *asked(2))
    texts = [[*ask.prompt, *text] for ask, text in zip(asked(2), expected, strict=True)]
    backend = toy()
    oracle = PaddedOracle(texts)
    assert run(backend, oracle, *asked(2)) == expected
    assert oracle.n_branched > 0
    steps = backend.widths[2:]
    assert max(steps) > 4
    assert not {width for width in steps if 1 < width < 16 and width % 4}


def test_a_width_stable_session_keeps_its_width():
    """It keeps the width even where its guesses fill it and a wider step would be quicker."""
    [ask] = asked(1)
    stable = replace(ask, speculation=Speculation(exactness="width-stable"))
    [text] = run(toy(), Proposer(), ask)
    oracle = EightAreDear([[*ask.prompt, *text]])
    backend = toy()
    assert run(backend, oracle, stable) == [text]
    assert oracle.accepted > 0
    assert set(backend.widths[1:]) == {8}


@pytest.mark.parametrize("exactness", ["default", "width-stable"])
def test_only_stable_sessions_need_width(exactness: Exactness):
    class Listening(FakeBackend):
        def start(self, batch: Batch) -> Callable[[], Logits]:
            seen.add(batch.stable)
            return super().start(batch)

        def decode(self, batch: Batch) -> Logits:
            seen.add(batch.stable)
            return super().decode(batch)

    seen, [ask] = set[bool](), asked(1)
    ask = replace(ask, speculation=Speculation(exactness=exactness))
    run(Listening(FakeModel(eog_rate=0.0), n_batch=8), Proposer(), ask)
    assert seen == {exactness == "width-stable"}
