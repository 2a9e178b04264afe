"""Replies longer than the context of a real model: equal with and without drafts, at temperature 0."""

from __future__ import annotations

import numpy as np
import pytest

from server.engine.engine import Engine
from server.engine.proposer import NoProposer, Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.engine.session import Session
from server.llama.backend import Batch
from server.llama.llamacpp import LlamaBackend
from server.sampling.params import SamplingParams
from tests.checks import check_engine
from tests.model.live import Padded
from tests.server.engine.shifting import Following
from tests.support import Outcome

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

N_CTX, N_KEEP, N = 128, 24, 320
QUESTION = "<|im_start|>user\nGive an introduction to regular expressions.<|im_end|>\n<|im_start|>assistant\n"


class Short(Padded):
    """The target with a shorter context.

    can_shift: False if its cells may not be moved.
    """

    def __init__(self, backend: LlamaBackend, *, can_shift: bool = True) -> None:
        super().__init__(backend)
        self.n_ctx, self.can_shift = N_CTX, can_shift


def asked(backend: LlamaBackend) -> GenerationRequest:
    prompt = backend.vocab.tokenize(QUESTION, special=True)
    return GenerationRequest(prompt, SamplingParams(0.0), N, n_keep=N_KEEP)


def run(backend: Short, proposer: Proposer, *asks: GenerationRequest) -> list[Outcome]:
    outcomes = [Outcome() for _ in asks]
    engine = Engine(
        backend, proposer, lambda id, event: outcomes[id].events.append(event), limits=Limits(n_chunk=32)
    )
    for id, ask in enumerate(asks):
        engine.submit(id, ask)
    while engine.step():
        pass
    check_engine(engine)
    return outcomes


@pytest.mark.parametrize("can_shift", [True, False])
def test_drafts_change_nothing_far_beyond_the_context(f32_target: LlamaBackend, can_shift: bool):
    backend, ask = Short(f32_target, can_shift=can_shift), asked(f32_target)
    [plain] = run(backend, NoProposer(), ask)
    assert len(plain.tokens) == N
    assert plain.finished.stats.truncated
    oracle = Following([(*ask.prompt, *plain.tokens)], wrong_every=5)
    [drafted] = run(backend, oracle, ask)
    assert drafted.tokens == plain.tokens
    assert len(oracle.opened) > 4
    assert 0 < drafted.finished.stats.n_accepted < drafted.finished.stats.n_drafted
    assert drafted.finished.stats.n_steps < N // 2


def test_neighbours_keep_their_own_cells(f32_target: LlamaBackend):
    ask = asked(f32_target)
    [plain] = run(Short(f32_target), NoProposer(), ask)
    three = run(Short(f32_target), NoProposer(), ask, ask, ask)
    assert [outcome.tokens for outcome in three] == [plain.tokens] * 3


def test_moved_cells_still_make_sense(f32_target: LlamaBackend):
    """Tokens after a shift are about as likely as if the remaining tokens were evaluated anew.

    They would not be if positions had not moved with their cells.
    """
    ask = asked(f32_target)
    [outcome] = run(Short(f32_target), NoProposer(), ask)
    session = Session(0, ask, N_CTX)
    n = N_CTX - session.n_prompt
    session.tokens += outcome.tokens[:n]
    session.drop(*session.next_drop())
    rest = outcome.tokens[n : n + 60]
    f32_target.trim(0, 0)
    batch = Batch()
    batch.extend(0, 0, [*session.tokens, *rest], len(rest) + 1)
    rows = f32_target.decode(batch).astype(np.float64)[:-1]
    f32_target.trim(0, 0)
    agreed = float((rows.argmax(axis=1) == np.array(rest)).mean())
    assert agreed > 0.8
