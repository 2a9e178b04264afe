"""Shadow sequences hold nothing once their session has ended, however it did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine.events import Failed
from server.engine.proposer import ROOT, NoProposer, Plan, Proposal, Upcoming
from server.errors import BackendError
from server.llama.backend import Batch, Logits
from tests.checks import check_engine
from tests.fake_backend import FakeBackend
from tests.server.engine.test_engine import ENDLESS, Exhausted
from tests.support import Harness, Outcome, request

SHORT = (5, 6, 7)  # a prompt that is evaluated in the step that verifies the first tree


class Forked(NoProposer):
    """A proposer of two alternatives for the next token of every session."""

    def plan(self, step: Upcoming) -> Plan:
        return Plan([Proposal((97, 98), (ROOT, ROOT), ("fork", "fork")) for _ in step.asks()])


def assert_clean_after(harness: Harness, failed: Outcome) -> None:
    """Check that the engine holds nothing of a failed session and that the next reply is right."""
    assert isinstance(failed.events[-1], Failed)
    check_engine(harness.engine)
    [expected] = Harness(FakeBackend(ENDLESS)).run(request(SHORT))
    [after] = harness.run(request(SHORT))
    assert after.tokens == expected.tokens


def test_failed_decode_empties_shadows(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(FakeBackend(ENDLESS), Forked())
    decode = FakeBackend.decode

    def fail_after_writing(self: FakeBackend, batch: Batch) -> Logits:
        decode(self, batch)
        raise BackendError("llama_decode returned -3")

    [id] = harness.submit(request(SHORT))
    with monkeypatch.context() as patch:
        patch.setattr(FakeBackend, "decode", fail_after_writing)
        harness.engine.step()
    assert_clean_after(harness, harness.outcomes[id])


def test_failing_grammar_empties_shadows():
    class AtOnce(Exhausted):
        def __init__(self) -> None:
            self._left = 1

    harness = Harness(FakeBackend(ENDLESS), Forked())
    [failed] = harness.run(replace(request(SHORT), constraint=AtOnce))
    assert_clean_after(harness, failed)


def test_check_finds_cells_that_nobody_accounts_for():
    for seq in (0, 14):
        harness = Harness(FakeBackend(ENDLESS))
        batch = Batch()
        batch.extend(seq, 0, [1], 1)
        harness.backend.decode(batch)
        with pytest.raises(AssertionError, match="cells"):
            check_engine(harness.engine)
