"""Models with a state beside or instead of the KV cache, and with sliding windows: drafts and earlier turns
do not change the text. The weights are random: the texts depend on all that the model remembers.

F32 weights and cache, and few batches of one row, as in test_invariance.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from server.engine.checkpoints import MARGIN
from server.engine.engine import Engine
from server.engine.proposer import NoProposer, Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.lead.calibration import measure
from server.llama.backend import Backend, Batch, Logits
from server.llama.llamacpp import LlamaBackend
from server.speculation.policy import Policy
from server.speculation.speculator import Speculator
from tests.checks import check_engine
from tests.model.asking import asks
from tests.model.conftest import open_exact
from tests.model.live import Padded
from tests.model.random_models import WINDOW, gemma3, jamba, mamba
from tests.support import OracleProposer, Outcome

pytestmark = pytest.mark.model

N_TOKENS = 90
of_temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])


@pytest.fixture(scope="module", params=[mamba, jamba, gemma3], ids=lambda make: make.__name__)
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaBackend]:
    make: Callable[[Path], None] = request.param
    path = tmp_path_factory.mktemp("random") / f"{make.__name__}.gguf"
    make(path)
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


def last_logits(backend: LlamaBackend, tokens: Sequence[int]) -> Logits:
    batch = Batch()
    batch.extend(0, 0, tokens, 1)
    logits = backend.decode(batch).copy()
    backend.trim(0, 0)
    return logits


def test_the_weights_are_such_that_what_is_remembered_counts(backend: LlamaBackend):
    """Tokens farther back than the window count, which attention alone does not see."""
    tokens = list(range(300, 300 + 2 * WINDOW))
    other = [tokens[0] + 1, *tokens[1:]]
    assert np.abs(last_logits(backend, tokens) - last_logits(backend, other)).max() > 0.001
    recent = [*tokens[:-8], tokens[-8] + 1, *tokens[-7:]]
    assert np.abs(last_logits(backend, tokens) - last_logits(backend, recent)).max() > 0.1


def test_whether_a_sequence_can_be_trimmed_is_found_out(backend: LlamaBackend):
    assert backend.can_trim == (backend.name == "gemma3")
    assert backend.can_shift == backend.can_trim


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


@of_temperatures
def test_turns_go_on_where_they_can_and_change_nothing(backend: LlamaBackend, temperature: float):
    """Another reply to the same prompt, one from inside the last turn's reply, and the next turns."""
    first = requests_for(backend, 2, temperature)
    replies = tokens_of(run(Padded(backend), NoProposer(), [[one] for one in first]))
    texts = [(*one.prompt, *reply) for one, reply in zip(first, replies, strict=True)]
    further = [replace(first[0], prompt=[*text, 5, 6, 7], max_tokens=40) for text in texts]
    inside = replace(first[1], prompt=[*texts[1][:-30], 9, 9], max_tokens=40)
    turns = [[first[0]], [inside], further]
    flat = [one for turn in turns for one in turn]
    expected = [run(Padded(backend), NoProposer(), [[one]])[0].tokens for one in flat]
    oracle = OracleProposer(texts, wrong_every=5)
    outcomes = run(Padded(backend), oracle, [first, *turns])
    assert tokens_of(outcomes) == [*replies, *expected]
    cached = [outcome.started.n_cached for outcome in outcomes]
    assert cached[4] >= len(texts[0]) - 14  # not those that ended with wrong guesses
    if not backend.can_trim:
        assert cached[2] >= len(first[0].prompt) - MARGIN
        assert cached[3] >= len(first[1].prompt) - MARGIN
    assert 0 < oracle.accepted < oracle.proposed


def test_the_lookup_is_let_in_by_the_gate_and_changes_nothing(backend: LlamaBackend):
    """The same question again, as a lead runs by default."""
    [ask] = requests_for(backend, 1, 1.0)
    expected = run(Padded(backend), NoProposer(), [[ask]])[0].tokens
    policy = Policy(leaves=1, again=not backend.can_trim)
    outcomes = run(Padded(backend), Speculator(policy), [[ask], [ask], [ask]])
    assert tokens_of(outcomes) == [expected] * 3


def test_steps_are_measured(backend: LlamaBackend):
    found = measure(backend, 8, budget_s=1.0)
    assert found[8] >= found[1] > 0.0
