"""Where a GPU decodes, what a step teaches is learned while the next one is decoded."""

from __future__ import annotations

import pytest

from server.llama.backend import Batch, Logits
from server.speculation.policy import Policy
from server.speculation.speculator import Speculator
from tests.fake_backend import FakeBackend, FakeModel
from tests.support import PROMPT, Harness, request

MODEL = FakeModel(eog_rate=0.0)


class Overlapping(FakeBackend):
    """A toy on a GPU. known: widths whose time the proposer knew when each decode began and when it ended."""

    def __init__(self) -> None:
        super().__init__(MODEL, overlaps=True)
        self.known: list[tuple[bool, bool]] = []
        self.speculator: Speculator | None = None

    def decode(self, batch: Batch) -> Logits:
        assert self.speculator is not None
        costs = self.speculator.pricing.costs
        before = costs.knows(1)
        logits = super().decode(batch)
        self.known.append((before, costs.knows(1)))
        return logits


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_step_is_learned_from_while_a_gpu_decodes_the_next_one(overlaps: bool):
    backend = Overlapping()
    backend.speculator = Speculator(Policy(lookup=False, overlaps=overlaps))
    Harness(backend, backend.speculator).run(request(max_tokens=4))
    _, first, second, third = backend.known  # after the prompt's
    assert first == (False, False), "nobody is told of a step with a prompt"
    assert second == ((False, True) if overlaps else (True, True))
    assert third == (True, True)


def test_a_step_is_learned_from_before_another_request_begins():
    backend = Overlapping()
    backend.speculator = Speculator(Policy(lookup=False, overlaps=True))
    harness = Harness(backend, backend.speculator)
    harness.run(request(max_tokens=2))
    assert not backend.speculator.pricing.costs.knows(1)
    harness.run(request(PROMPT[::-1], max_tokens=1))
    assert backend.speculator.pricing.costs.knows(1)
