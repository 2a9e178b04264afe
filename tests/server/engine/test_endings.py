"""A session ends whole, whatever raises on the way: its sequences, the proposer's session and its caller."""

from __future__ import annotations

import asyncio
import math
import queue
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from server.engine import thread
from server.engine.engine import Engine
from server.engine.events import Failed
from server.engine.proposer import NoProposer, OpenedSession, Plan, Upcoming
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.errors import BackendError
from server.llama.backend import Logits
from server.sampling.noise import mix
from server.sampling.params import SamplingParams
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.server.engine.shifting import Following, alone, asked, backend
from tests.server.engine.test_engine import ENDLESS, plain
from tests.support import PROMPT, Harness, OracleProposer, request

MANY = 50  # failed steps


class Unopened(OracleProposer):
    """A proposer that fails on every session after it has begun to keep it."""

    def open(self, session: OpenedSession) -> None:
        super().open(session)
        raise RuntimeError("a bad presence card")


def test_failing_proposer_only_loses_drafts():
    [expected] = plain(request())
    harness = Harness(proposer=Unopened([PROMPT + expected]))
    [outcome] = harness.run(request())
    assert outcome.tokens == expected
    assert outcome.finished.stats.n_drafted == 0


def test_failed_reopening_only_loses_drafts():
    class OpenedOnce(Following):
        def open(self, session: OpenedSession) -> None:
            super().open(session)
            if len(self.opened) > 1:
                raise RuntimeError("a bad presence card")

    expected = alone(asked())
    proposer = OpenedOnce([PROMPT + expected])
    [outcome] = Harness(backend(), proposer).run(asked())
    assert outcome.tokens == expected
    assert len(proposer.opened) == 2
    assert 0 < outcome.finished.stats.n_drafted < len(expected)


def broken_trim(self: FakeBackend, seq: int, length: int) -> None:
    raise BackendError("the KV cache cannot be trimmed")


@pytest.mark.parametrize("all_at_once", [False, True])
def test_sessions_end_despite_failing_cleanup(all_at_once: bool, monkeypatch: pytest.MonkeyPatch):
    oracle = OracleProposer([])
    harness = Harness(FakeBackend(ENDLESS, n_seqs=2), oracle, n_slots=2, limits=Limits(n_batch=64, leaves=1))
    ids = harness.submit(request(), request((1, 2)))
    for _ in range(3):
        harness.engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(FakeBackend, "trim", broken_trim)
        if all_at_once:
            with pytest.raises(BackendError):
                harness.engine.fail_all(BackendError("a defect"))
        else:
            for id in ids:
                with pytest.raises(BackendError):
                    harness.engine.cancel(id)
    assert all(harness.outcomes[id].ended for id in ids)
    assert oracle.idle()
    asks = request(max_tokens=5), request((1, 2), max_tokens=5)
    assert [outcome.tokens for outcome in harness.run(*asks)] == plain(*asks, model=ENDLESS)


def to_the_end(harness: Harness) -> None:
    while harness.engine.step():
        pass


def test_failed_preemption_still_waits(monkeypatch: pytest.MonkeyPatch):
    harness = Harness(FakeBackend(ENDLESS, n_cells=420, n_ctx=420))
    ids = harness.submit(*(request((i, *PROMPT), max_tokens=150) for i in range(4)))
    harness.engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(FakeBackend, "trim", broken_trim)
        with pytest.raises(BackendError):
            to_the_end(harness)
    assert (harness.engine.n_active, harness.engine.n_waiting) == (3, 1)
    harness.engine.fail_all(BackendError("a defect"))
    assert all(isinstance(harness.outcomes[id].events[-1], Failed) for id in ids)


class Undrained(NoProposer):
    """A proposer that fails to take in what arrived."""

    def plan(self, step: Upcoming) -> Plan:
        raise RuntimeError("a message that nobody can read")


async def test_failing_steps_pause_ever_longer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    loop, many = asyncio.get_running_loop(), asyncio.Event()
    pauses: list[float] = []

    class Timeless(queue.SimpleQueue[object]):
        """A queue that notes how long it was to wait, and does not."""

        def get(self, block: bool = True, timeout: float | None = None) -> object:
            pauses.append(timeout or 0.0)
            if len(pauses) == MANY:
                loop.call_soon_threadsafe(many.set)
            return super().get(block=len(pauses) > MANY)

    monkeypatch.setattr(thread, "queue", SimpleNamespace(SimpleQueue=Timeless, Empty=queue.Empty))
    model = FakeBackend()
    running = thread.EngineThread(lambda emit: Engine(model, Undrained(), emit), n_ctx=model.n_ctx)
    running.start()
    await many.wait()
    await running.stop()
    growing = pauses[: pauses.index(thread.MOST_PAUSE_S)]
    assert growing == sorted(set(growing))
    assert set(pauses[len(growing) : MANY]) == {thread.MOST_PAUSE_S}
    assert "nobody can read" in caplog.text


SICK = (1, 2, 3)
BANNED = tuple((token, -math.inf) for token in range(FakeVocabulary.size))


@dataclass(frozen=True, slots=True)
class Sickly(FakeModel):
    """A backend whose logits are no numbers after the prompt SICK."""

    def logits(self, chain: int) -> Logits:
        sick = 0
        for token in SICK:
            sick = mix(sick + token + 1)
        row = FakeModel.logits(self, chain)
        return np.full_like(row, np.nan) if chain == sick else row


def sampled(params: SamplingParams) -> GenerationRequest:
    return replace(request(SICK), sampling=params)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("by_rejection", [False, True])
@pytest.mark.parametrize(
    "asked",
    [
        sampled(SamplingParams()),
        sampled(SamplingParams(temperature=0.0)),
        sampled(SamplingParams(repeat_penalty=1.1)),
        replace(sampled(SamplingParams()), n_logprobs=2, drawn_from=True),
        replace(request(SICK), n_beams=2),
        sampled(SamplingParams(logit_bias=BANNED)),
        replace(request(), sampling=SamplingParams(temperature=0.0, logit_bias=BANNED)),
    ],
    ids=["plain", "greedy", "penalties", "told", "beams", "no numbers and banned", "banned"],
)
def test_a_session_that_draws_nothing_ends_alone(
    asked: GenerationRequest, by_rejection: bool, caplog: pytest.LogCaptureFixture
):
    limits = Limits(n_batch=64, leaves=1, by_rejection=by_rejection)
    harness = Harness(FakeBackend(Sickly()), limits=limits)
    *others, sick = harness.submit(request(), request((7, 8)), asked)
    while harness.engine.step():
        pass
    failed = harness.outcomes[sick].events[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, BackendError)
    assert "no token could be drawn" in failed.error.message
    assert "Traceback" in caplog.text
    if not by_rejection:
        expected = plain(request(), request((7, 8)), model=Sickly())
        assert [harness.outcomes[id].tokens for id in others] == expected
    assert all(harness.outcomes[id].finished for id in others)
