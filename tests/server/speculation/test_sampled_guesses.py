"""--verify rejection: its rule needs to know what a guess was sampled from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine.request import Speculation
from server.engine.scheduler import Limits
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.speculator import Speculator
from tests.fake_backend import FakeModel
from tests.server.speculation.test_speculator import Clock, TimedBackend
from tests.support import Harness, request


@pytest.mark.parametrize("prediction", [(), tuple(b"a text that the client expects")])
def test_rejection_verifies_only_samples(prediction: tuple[int, ...]):
    """This also holds while the draft model rests."""
    clock = Clock()
    drafts = TimedBackend(clock, FakeModel(seed=99, eog_rate=0.0), 0.3, 0.0)
    target = TimedBackend(clock, FakeModel(eog_rate=0.0), 0.95, 0.05)
    inline = DraftModel(drafts, distributions=True, clock=clock)
    speculator = Speculator(Policy(lookup=False, leaves=1, by_rejection=True), inline=inline, clock=clock)
    limits = Limits(n_batch=64, n_chunk=16, draft_max=8, leaves=1, by_rejection=True)
    harness = Harness(target, speculator, limits=limits, clock=clock)
    harness.run(request(max_tokens=900, temperature=1.0))
    assert speculator.ledger.inline is not None
    assert speculator.ledger.inline.of(1).paused, "no guess was right"
    asked = request(max_tokens=100, temperature=1.0)
    [outcome] = harness.run(replace(asked, speculation=Speculation(prediction=prediction)))
    assert len(outcome.tokens) == 100
    assert outcome.finished.stats.n_drafted == 0
