"""Models with a sliding window: what it has passed stays usable, in every tier and beyond the context.

Random weights, F32 weights and cache, and never a batch of one row, as in test_kinds.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from server.cache.files import DiskTier
from server.cache.snapshots import Snapshots
from server.engine.engine import Engine
from server.engine.proposer import NoProposer, Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.errors import BackendError
from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend
from server.sampling.params import SamplingParams
from tests.checks import check_engine
from tests.model.conftest import open_exact
from tests.model.kinds import KINDS, WINDOW
from tests.model.live import Padded
from tests.model.random_models import write
from tests.server.engine.shifting import Following
from tests.support import Outcome

pytestmark = pytest.mark.model

SAID = [100 + 7 * i for i in range(6 * WINDOW)]
ENOUGH = 1 << 28
WAIT_S = 20.0


@pytest.fixture(scope="module", params=["gemma3", "gemma4", "gpt-oss"])
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaBackend]:
    path = tmp_path_factory.mktemp("random") / "model.gguf"
    write(path, KINDS[request.param])
    with closing(open_exact(path)) as opened:
        yield opened


def evaluate(backend: LlamaBackend, seq: int, tokens: list[int], start: int = 0) -> Logits:
    """Return the logits after these tokens, of which the sequence holds the first `start`."""
    batch = Batch()
    batch.extend(seq, start, tokens[start:], 1)
    return backend.decode(batch)[0].copy()


@dataclass
class Lead:
    """An engine over places for conversations. tiers: None for the KV cache alone."""

    backend: LlamaBackend
    n_places: int
    tiers: Snapshots | None = None
    proposer: Proposer = field(default_factory=NoProposer)
    n_ctx: int = 2048
    ready: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._outcomes: dict[int, Outcome] = {}
        padded = Padded(self.backend)
        padded.n_seqs, padded.n_ctx = self.n_places, self.n_ctx
        self.engine = Engine(
            padded,
            self.proposer,
            lambda id, event: self._outcomes[id].events.append(event),
            n_slots=min(4, self.n_places),
            limits=Limits(n_batch=padded.n_batch, leaves=1),
        )
        if self.tiers is not None:
            self.engine.residence.save_to(self.tiers)
        self.engine.residence.move_costs.token_s.value = 1.0  # loading pays

    def run(self, *asks: GenerationRequest) -> list[Outcome]:
        ids = range(len(self._outcomes), len(self._outcomes) + len(asks))
        for id, ask in zip(ids, asks, strict=True):
            self._outcomes[id] = Outcome()
            self.engine.submit(id, ask)
        while not all(self._outcomes[id].ended for id in ids):
            self.ready.clear()
            if not self.engine.step():
                assert self.ready.wait(WAIT_S)
        check_engine(self.engine)
        return [self._outcomes[id] for id in ids]

    def ask(self, tokens: list[int]) -> Outcome:
        [outcome] = self.run(GenerationRequest(tokens, SamplingParams(0.0), 8))
        return outcome

    def close(self) -> None:
        self.engine.residence.save_all(WAIT_S)
        for slot in self.engine.slots.list():
            self.engine.slots.erase(slot.id)


def on_disk(folder: Path, backend: LlamaBackend) -> Lead:
    """Return a lead whose conversations are on disk, in a folder that an earlier one may have filled."""
    ready = threading.Event()
    disk = DiskTier(folder, budget_bytes=ENOUGH, fingerprint="random")
    return Lead(backend, 2, Snapshots(memory_bytes=ENOUGH, disk=disk, on_ready=ready.set), ready=ready)


def test_cells_that_a_window_has_passed_stay(backend: LlamaBackend):
    evaluate(backend, 1, SAID[:40])
    evaluate(backend, 0, SAID[: 3 * WINDOW])
    expected = evaluate(backend, 2, SAID[: WINDOW + 3])
    backend.trim(2, 0)
    backend.trim(1, 0)  # llama.cpp looks for free cells from there on
    for n in range(3 * WINDOW, 6 * WINDOW):
        evaluate(backend, 0, SAID[: n + 1], n)
    assert backend.intact(0, WINDOW)
    backend.trim(0, WINDOW)
    found = evaluate(backend, 0, SAID[: WINDOW + 3], WINDOW)
    backend.trim(0, 0)
    assert np.abs(found - expected).max() < 1e-3


@pytest.mark.parametrize("length", [1, WINDOW, 2 * WINDOW + 5, 6 * WINDOW - 2])
def test_loaded_states_go_on_anywhere(backend: LlamaBackend, length: int):
    evaluate(backend, 0, SAID)
    state = backend.save(0)
    backend.trim(0, 0)
    expected = evaluate(backend, 1, SAID[: length + 2])
    backend.trim(1, 0)
    backend.load(0, state)
    assert backend.length(0) == len(SAID)
    backend.trim(0, length)
    found = evaluate(backend, 0, SAID[: length + 2], length)
    backend.trim(0, 0)
    assert np.abs(found - expected).max() < 1e-3


def test_states_are_refused_unless_whole(backend: LlamaBackend):
    evaluate(backend, 0, SAID)
    state = backend.save(0)
    backend.trim(0, 0)
    for broken in (b"", state[:100], state[:-1], state[16:], state + b"1234567"):
        with pytest.raises(BackendError):
            backend.load(0, broken)
        backend.trim(0, 0)
    assert backend.length(0) == 0


def test_shared_prompts_return_from_memory(backend: LlamaBackend):
    lead = Lead(backend, 2, Snapshots(memory_bytes=ENOUGH))
    head, ends = SAID, ([5, *range(300, 360)], [6, *range(400, 460)])
    lead.ask(head + ends[0])
    for i in range(3):
        lead.ask([20 + i, *range(500, 600)])  # pushes it out
        outcome = lead.ask(head + ends[i % 2])
        assert outcome.started.n_cached >= len(head)
    lead.close()


def test_conversations_outlive_a_restart(backend: LlamaBackend, tmp_path: Path):
    history = list(SAID)
    for _ in range(3):
        lead = on_disk(tmp_path, backend)
        outcome = lead.ask(history)
        lead.close()
        history += [*outcome.tokens[:-3], 7, 8, 9]  # a client writes the reply's end otherwise
    lead = on_disk(tmp_path, backend)
    assert lead.ask(history).started.n_cached >= 0.9 * (len(history) - 3)
    lead.close()
    edited = on_disk(tmp_path, backend)
    assert edited.ask([*SAID[:80], 3, 4, *SAID[82:]]).started.n_cached == 80
    edited.close()


@pytest.mark.parametrize("n_keep", [0, 8, 60])
@pytest.mark.parametrize("n_sessions", [1, 4])
def test_earlier_requests_change_no_text(backend: LlamaBackend, n_keep: int, n_sessions: int):
    asks = [
        GenerationRequest([30 + i, *SAID[:59]], SamplingParams(0.0), 300, n_keep=n_keep)
        for i in range(n_sessions)
    ]
    plain = Lead(backend, 6, n_ctx=128)
    expected = [plain.run(ask)[0].tokens for ask in asks]
    plain.close()
    oracle = Following(
        [(*ask.prompt, *text) for ask, text in zip(asks, expected, strict=True)], wrong_every=5
    )
    lead = Lead(backend, 6, n_ctx=128, proposer=oracle)
    for _ in range(2):
        assert [outcome.tokens for outcome in lead.run(*asks)] == expected
    assert oracle.accepted > 50
    lead.close()
