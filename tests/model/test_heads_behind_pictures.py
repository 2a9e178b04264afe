"""Prediction blocks, EAGLE-3 heads and lookups go on behind pictures, and change no text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.inflate import convert
from benchmarks.with_block import BLOCK, join
from server.cache.snapshots import Snapshots
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama import tails
from server.llama.assistant import Assistant
from server.llama.backend import PredictionBlock, ReadsRows
from server.llama.eagle3 import LlamaHead
from server.llama.llamacpp import LlamaBackend
from server.llama.mtp import LlamaBlock
from server.llama.options import Weights
from server.llama.with_block import WithBlock
from server.pictures.grid_positions import GridPositions
from server.pictures.registry import Pictures
from server.pictures.vocabulary import PictureVocabulary
from server.pictures.with_pictures import WithPictures
from server.settings import BUNDLED_MODEL
from server.speculation.policy import Policy
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.speculator import Speculator
from tests.fake_backend import FakeBackend
from tests.model.block_kinds import GEMMA4_ASSISTANT
from tests.model.conftest import open_exact
from tests.model.kinds import GEMMA4, QWEN35_BLOCK
from tests.model.projectors import GEMMA, LLAVA, QWEN_VL, write_projector
from tests.model.random_models import words_added, write
from tests.model.test_pictures import PaddedReader, mtmd, open_projector, pixels
from tests.model.test_prediction_block import EAGLE3_HEAD, Unmeasured
from tests.support import Harness, Outcome, request

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
assert mtmd  # a fixture

WIDTH = 512  # of the bundled model
VISION = words_added("<|vision_start|>", "<|vision_end|>")
HYBRID = QWEN35_BLOCK._replace(fields={**QWEN35_BLOCK.fields, **VISION})


@dataclass
class Headed:
    """A model with its projector and what guesses from its rows."""

    target: LlamaBackend
    base: ReadsRows
    block: PredictionBlock
    pictures: Pictures
    temperature: float

    def harness(self, *, drafts: bool, lookup: bool = False, snapshots: Snapshots | None = None) -> Harness:
        for seq in range(self.target.n_seqs):
            self.base.trim(seq, 0)
            self.block.trim(seq, 0)
        headed = WithBlock(self.base, self.block) if drafts else None
        leaves = 3 if self.target.can_trim else 1
        again, n_tail = not self.target.can_trim, self.target.n_tail
        policy = Policy(leaves=leaves, lookup=lookup, gate=False, again=again, n_tail=n_tail)
        inline = BlockDraft(headed, most=3) if headed else None
        proposer = Speculator(policy, inline=inline, times=Unmeasured(policy.max_rows))
        model = WithPictures(PaddedReader(cast(LlamaBackend, headed or self.base)), self.pictures)
        limits = Limits(n_batch=model.n_batch, n_chunk=32, draft_max=3)
        one = Harness(cast(FakeBackend, model), proposer, n_slots=4, limits=limits, snapshots=snapshots)
        one.engine.residence.move_costs.token_s.value = 1.0  # loading a snapshot pays
        return one

    def tokens(self, text: str, seed: int) -> list[int]:
        picture = self.pictures.of(pixels(seed), lambda n: None)
        return self.target.vocab.tokenize(text.format(picture.word), special=True)

    def asking(self, tokens: Sequence[int], seed: int) -> GenerationRequest:
        heat = self.temperature
        asked = request(tokens, temperature=heat, seed=seed, max_tokens=40, stop_tokens=frozenset())
        return replace(asked, pictures=self.pictures.spans(tokens))

    def asks(self) -> list[GenerationRequest]:
        question = (
            "<|im_start|>user\n{}What is recursion? Give an example.<|im_end|>\n<|im_start|>assistant\n"
        )
        return [self.asking(self.tokens(question, seed), seed) for seed in (1, 2)]


@pytest.fixture(scope="module", params=["mtp", "eagle3", "hybrid", "hybrid with a tail", "assistant"])
def headed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, mtmd: Any
) -> Iterator[Headed]:
    kind, folder = request.param, tmp_path_factory.mktemp("headed")
    model, head, path = (folder / f"{what}.gguf" for what in ("model", "head", "projector"))
    of_toy = kind in ("mtp", "eagle3")
    _write(kind, model, head)
    projectors = {"mtp": LLAVA, "eagle3": LLAVA, "assistant": GEMMA}
    write_projector(path, projectors.get(kind, QWEN_VL), **({"n_embd": WIDTH} if of_toy else {}))
    weights = Weights(mtp=kind != "eagle3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tails, "SHARE", 100.0)  # the weights are smaller than the states
        opened = open_exact(model, n_tail=3 if kind.endswith("tail") else 0, weights=weights)
    with closing(opened) as target, closing(open_projector(path, target)) as projector:
        with closing(_block_of(kind, target, head)) as block:
            pictures = Pictures(projector)
            target.vocab = PictureVocabulary(target.vocab, pictures)
            base = GridPositions(target) if projector.has_grids else target
            yield Headed(target, base, block, pictures, 0.3 if of_toy else 1.0)


def _block_of(kind: str, target: LlamaBackend, head: Path) -> LlamaHead | Assistant | LlamaBlock:
    if kind == "eagle3":
        return LlamaHead(target, head)
    return Assistant(target, head, Weights()) if kind == "assistant" else LlamaBlock(target)


def _write(kind: str, model: Path, head: Path) -> None:
    if kind.startswith("hybrid"):
        write(model, HYBRID)
    elif kind == "assistant":
        write(model, GEMMA4)
        write(head, GEMMA4_ASSISTANT)
    elif kind == "eagle3":
        convert(BUNDLED_MODEL, model, "f32")
        convert(EAGLE3_HEAD, head)
    else:
        join(BUNDLED_MODEL, BLOCK, head)
        convert(head, model)


def converse(one: Harness, headed: Headed, snapshots: bool = False) -> list[Outcome]:
    """Run two turns, each about a picture, of two conversations."""
    first = headed.asks()
    outcomes = one.run(*first)
    while snapshots and one.engine.residence.evict():
        pass
    more = headed.tokens("\nAnd {} this? Say it in other words.\n", 9)
    later = [
        headed.asking([*ask.prompt, *outcome.tokens, *more], 5)
        for ask, outcome in zip(first, outcomes, strict=True)
    ]
    return outcomes + one.run(*later)


def said(outcomes: Sequence[Outcome]) -> list[tuple[int, ...]]:
    return [outcome.tokens for outcome in outcomes]


def check_guesses(outcomes: Sequence[Outcome], source: str) -> None:
    """Check that this source guessed in every reply, rightly and wrongly."""
    counts = [outcome.finished.stats.drafters.get(source) for outcome in outcomes]
    assert all(count and count.drafted for count in counts)
    right, drafted = (sum(getattr(one, what) for one in counts) for what in ("accepted", "drafted"))
    assert 0 < right < drafted


def test_heads_guess_behind_pictures(headed: Headed):
    plain = converse(headed.harness(drafts=False), headed)
    drafted = converse(headed.harness(drafts=True), headed)
    assert said(drafted) == said(plain)
    check_guesses(drafted, headed.block.source)
    held = [len(ask.prompt) + 39 for ask in headed.asks()]
    assert [outcome.started.n_cached for outcome in drafted[2:]] == held


def test_saved_conversations_have_heads(headed: Headed):
    plain = converse(headed.harness(drafts=False), headed)
    one = headed.harness(drafts=True, snapshots=Snapshots(memory_bytes=1 << 28))
    drafted = converse(one, headed, snapshots=True)
    assert said(drafted) == said(plain)
    check_guesses(drafted, headed.block.source)
    assert min(outcome.started.n_cached for outcome in drafted[2:]) > 0


def test_lookups_guess_behind_pictures(headed: Headed):
    """The second request is the first one's again, so that its reply is known."""
    ask = headed.asks()[0]
    one = headed.harness(drafts=False, lookup=True)
    [first], [again] = one.run(ask), one.run(ask)
    assert again.tokens == first.tokens
    count = again.finished.stats.drafters["lookup"]
    assert count.accepted > 10, count
