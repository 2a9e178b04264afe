"""Models with a state beside or instead of the KV cache, and with sliding windows: whatever share of the
guesses is wrong, the text is the same. test_kinds.py has other kinds, and turns.

F32 weights and cache, and few batches of one row, as in test_invariance.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pytest

from server.engine.engine import Engine
from server.engine.proposer import NoProposer, Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.lead.calibration import measure
from server.llama.backend import Backend, Batch
from server.llama.llamacpp import LlamaBackend
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
    """Requests whose prompts share a beginning that is long enough for a mark."""
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


def test_cells_that_a_window_has_passed_may_be_gone(backend: LlamaBackend):
    """Given to another sequence though there is room: what is trimmed to there would go on with a hole."""
    if not backend.can_trim:
        pytest.skip("it cannot be trimmed")
    for seq, n in ((1, 40), (0, 3 * WINDOW)):
        batch = Batch()
        batch.extend(seq, 0, range(300, 300 + n), 0)
        backend.decode(batch)
    assert backend.intact(0, WINDOW)
    backend.trim(1, 0)
    for i in range(3 * WINDOW, 6 * WINDOW):
        batch = Batch()
        batch.extend(0, i, [300 + i], 0)
        backend.decode(batch)
    assert backend.intact(0, 6 * WINDOW)
    assert backend.intact(0, 6 * WINDOW - 2)
    assert not backend.intact(0, WINDOW)
    backend.trim(0, 0)


def test_steps_are_measured(backend: LlamaBackend):
    found = measure(backend, 8, budget_s=1.0)
    assert found[8] >= found[1] > 0.0
