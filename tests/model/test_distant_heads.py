"""A head on another device drafts from rows that the lead sends, and no text depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

from benchmarks.with_block import BLOCK
from drafters.head_drafter import HeadDrafter, open_head
from server.engine.request import GenerationRequest
from server.llama.backend import RowsCard
from server.llama.eagle3 import LlamaHead
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.mtp import BlockFile
from server.sampling.params import SamplingParams
from server.settings import BUNDLED_MODEL
from tests.model.duet import Duet, counts

pytestmark = pytest.mark.model

HEAD = BLOCK.with_name("duo-tiny-eagle3-q8_0.gguf")


class Scene(NamedTuple):
    """A target, and a head of it that knows nothing of the target's context."""

    target: LlamaBackend
    head: LlamaHead | BlockFile
    card: RowsCard


@pytest.fixture(scope="module")
def donor() -> Iterator[LlamaBackend]:
    with closing(LlamaBackend(LlamaOptions(BUNDLED_MODEL, n_cells=32, n_seqs=1))) as backend:
        yield backend


@pytest.fixture(scope="module")
def scene(donor: LlamaBackend) -> Iterator[Scene]:
    with closing(LlamaBackend(LlamaOptions(BUNDLED_MODEL, n_cells=4096, n_seqs=12))) as target:
        head, card = open_head(HEAD, donor, LlamaOptions(HEAD, n_cells=4096, n_seqs=4))
        with closing(head):
            yield Scene(target, head, card)


def asks(target: LlamaBackend, *questions: str, temperature: float = 0.0) -> list[GenerationRequest]:
    texts = (f"<|im_start|>user\n{one}<|im_end|>\n<|im_start|>assistant\n" for one in questions)
    sampling = SamplingParams(temperature, seed=7)
    return [GenerationRequest(target.vocab.tokenize(t, special=True), sampling, max_tokens=80) for t in texts]


def test_guesses_are_accepted(scene: Scene):
    for questions in (("What is recursion?",), ("What is a hash table?", "Write a loop.", "What is a list?")):
        for seq in range(scene.target.n_seqs):
            scene.target.trim(seq, 0)
        duet = Duet(scene.target, drafter=(HeadDrafter(scene.head), scene.card))
        outcomes = duet.run(*asks(scene.target, *questions))
        accepted, drafted = counts(outcomes)
        assert drafted > 0
        assert accepted > 0.5 * sum(len(one.tokens) for one in outcomes)
