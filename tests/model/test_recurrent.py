"""Models with a state beside or instead of the KV cache, and with sliding windows.

Whatever share of the guesses is wrong, the text is the same. test_kinds.py has other kinds, and turns.

F32 weights and cache, and few batches of one row, as in test_invariance.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from server.engine.engine import Engine
from server.engine.proposer import NoProposer, Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.lead.calibration import measure
from server.llama.backend import Backend, Batch, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from tests.checks import check_engine
from tests.model.asking import asks
from tests.model.conftest import open_exact
from tests.model.kinds import KINDS, WINDOW
from tests.model.live import Padded
from tests.model.random_models import write
from tests.support import OracleProposer, Outcome

pytestmark = pytest.mark.model

N_TOKENS = 60
of_temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])


@pytest.fixture(scope="module", params=["mamba", "jamba", "gemma3"])
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaBackend]:
    path = tmp_path_factory.mktemp("random") / "model.gguf"
    write(path, KINDS[request.param])
    with closing(open_exact(path)) as opened:
        yield opened


def run(backend: Backend, proposer: Proposer, turns: Sequence[Sequence[GenerationRequest]]) -> list[Outcome]:
    """Run the turns in order, the requests of each at once."""
    outcomes: list[Outcome] = []
    engine = Engine(
        backend,
        proposer,
        lambda id, event: outcomes[id].events.append(event),
        limits=Limits(n_batch=backend.n_batch, draft_max=6),
    )
    for turn in turns:
        for one in turn:
            outcomes.append(Outcome())
            engine.submit(len(outcomes) - 1, one)
        while engine.step():
            pass
        check_engine(engine)
    for slot in engine.slots.list():
        engine.slots.erase(slot.id)
    return outcomes


def requests_for(backend: LlamaBackend, n: int, temperature: float) -> list[GenerationRequest]:
    """Return requests whose prompts share a beginning long enough for a mark."""
    plain = asks(backend.vocab, n, temperature, N_TOKENS)
    system = [100 + 7 * i for i in range(100)]
    return [
        replace(
            one,
            prompt=[*system, *one.prompt],
            sampling=replace(one.sampling, top_k=0, top_p=1.0, min_p=0.0),
        )
        for one in plain
    ]


def tokens_of(outcomes: Sequence[Outcome]) -> list[tuple[int, ...]]:
    return [outcome.tokens for outcome in outcomes]


def test_micro_batches_keep_window_cells(tmp_path: Path):
    """Between micro-batches llama.cpp takes the earlier rows' window for the sequence's.

    What it has passed may be overwritten, although these rows are trimmed then.
    """
    path = tmp_path / "gemma3.gguf"
    write(path, KINDS["gemma3"])
    options = LlamaOptions(path, 256, 8, n_ubatch=4, cache_type_k="f32", cache_type_v="f32")
    with closing(LlamaBackend(options)) as backend:
        n, tokens = 3 * WINDOW, list(range(300, 400))

        def evaluate(seq: int, start: int, end: int) -> Logits:
            logits = np.empty(0, dtype=np.float32)
            for at in range(start, end, backend.n_batch):
                batch = Batch()
                rows = tokens[at : min(at + backend.n_batch, end)]
                batch.extend(seq, at, rows, 1)
                logits = backend.decode(batch).copy()
            return logits

        evaluate(1, 0, 40)
        evaluate(0, 0, n)
        evaluate(2, 0, 100)
        evaluate(3, 0, 256 - 40 - n - 100)
        backend.trim(1, 0)
        evaluate(4, 0, 40)  # in the first cells; next are those of sequence 0
        backend.trim(2, 0)
        evaluate(5, 0, n - WINDOW - 3)  # in cells that its window has passed
        evaluate(0, n, n + 8)
        backend.trim(0, n + 1)
        found = evaluate(0, n + 1, n + 2)
        for seq in range(6):
            backend.trim(seq, 0)
        evaluate(0, 0, n + 1)
        assert np.abs(evaluate(0, n + 1, n + 2) - found).max() < 0.01


@of_temperatures
@pytest.mark.parametrize("wrong_every", [0, 3, 8])
def test_guesses_change_nothing(backend: LlamaBackend, temperature: float, wrong_every: int):
    first = requests_for(backend, 3, temperature)
    alone = [[one] for one in first]
    expected = tokens_of(run(Padded(backend), NoProposer(), alone))
    assert len(set(expected)) == 3
    texts = [(*one.prompt, *text) for one, text in zip(first, expected, strict=True)]
    for turns in (alone, [first]):
        oracle = OracleProposer(texts, wrong_every=wrong_every)
        assert tokens_of(run(Padded(backend), oracle, turns)) == expected
        assert oracle.accepted > 50
        assert (oracle.accepted < oracle.proposed) == bool(wrong_every)


def test_steps_are_measured(backend: LlamaBackend):
    found = measure(backend, 8, budget_s=1.0)
    assert found[8] >= found[1] > 0.0
