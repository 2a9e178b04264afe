"""Prediction blocks of the rarer kinds, one for each depth or on the KV cache of the target.

Texts are those of the target alone, and guesses those that the block should make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from benchmarks.with_block import BLOCK, join
from server.cache.snapshots import Snapshots
from server.engine.request import GenerationRequest
from server.errors import BackendError, StartupError
from server.flags import read
from server.lead.loading import drafting_inside, load_target, prepared
from server.llama.assistant import Assistant
from server.llama.backend import Batch, Logits
from server.llama.dflash import DFlashHead
from server.llama.library import LoadedModel
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.mtp import LlamaBlock
from server.llama.options import Weights
from server.llama.with_block import Path as BlockPath
from server.llama.with_block import WithBlock
from server.sampling.params import SamplingParams
from server.settings import BUNDLED_MODEL, LeadSettings
from tests.model.block_kinds import DFLASH, DSPARK, GEMMA4_ASSISTANT, STEP35
from tests.model.conftest import open_exact
from tests.model.kinds import GEMMA4, GRANITE_HYBRID, N_EMBD, QWEN3, weights
from tests.model.kinds import Kind as RandomKind
from tests.model.random_models import write
from tests.model.test_prediction_block import (
    asks,
    assert_right_and_wrong,
    converse,
    harness,
    said,
)

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


class Kind(NamedTuple):
    target: LlamaBackend
    model: WithBlock


PAIRS = {
    "several": (STEP35, None),
    "assistant": (GEMMA4, GEMMA4_ASSISTANT),
    "dflash": (QWEN3, DFLASH),
    "dspark": (QWEN3, DSPARK),
}


@pytest.fixture(scope="module", params=PAIRS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    folder = tmp_path_factory.mktemp("blocks")
    path, own = folder / "target.gguf", folder / "own.gguf"
    of_target, of_block = PAIRS[request.param]
    write(path, of_target)
    if of_block:
        write(own, of_block)
    with ExitStack() as stack:
        target = stack.enter_context(closing(open_exact(path, weights=Weights(mtp=True))))
        if of_block is None:
            block = LlamaBlock(target)
        elif of_block.architecture == "dflash":
            block = DFlashHead(target, own)
        else:
            block = Assistant(target, own, Weights())
        stack.enter_context(closing(block))
        yield Kind(target, WithBlock(target, block))


def noisy(n: int) -> list[GenerationRequest]:
    """Return requests at a temperature: random weights guess with the session's noise, some of it right."""
    sampling = SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
    return [GenerationRequest([100 + i, *range(200, 290)], sampling, 40) for i in range(n)]


@pytest.mark.parametrize("n", [1, 4])
def test_texts_are_equal(n: int, kind: Kind):
    plain = converse(harness(kind.target, 4), noisy(n))
    drafted = converse(harness(kind.model, 4), noisy(n))
    assert said(drafted) == said(plain)
    assert_right_and_wrong(drafted)
    assert not kind.model.failed


def test_conversations_that_leave_the_cache_come_back(kind: Kind):
    plain = converse(harness(kind.target, 1), noisy(4), at_once=False)
    snapshots = Snapshots(memory_bytes=1 << 30)
    drafted = converse(harness(kind.model, 1, snapshots, n_seqs=6), noisy(4), at_once=False)
    assert said(drafted) == said(plain)
    assert snapshots.counters().hits >= 2
    assert_right_and_wrong(drafted)


def test_guesses_are_those_of_these_tokens_alone(kind: Kind):
    """A guess after several conversations in one KV cache equals that in an empty one."""
    converse(harness(kind.model, 4), noisy(4))
    text = list(range(300, 360))
    among = guesses_after(kind.model, 1, text)
    for seq in range(kind.model.n_seqs):
        kind.model.trim(seq, 0)
    alone = guesses_after(kind.model, 0, text)
    assert np.abs(among - alone).max() < 0.02
    other = guesses_after(kind.model, 1, [text[0] + 1, *text[1:-30], text[-30] + 1, *text[-29:]])
    assert (np.abs(other - alone).max(axis=1) > 0.2).all()


def guesses_after(model: WithBlock, seq: int, text: Sequence[int]) -> Logits:
    """Return the logits of three guesses after a text that differs from others in all rows."""
    model.trim(seq, 0)
    batch = Batch()
    batch.extend(seq, 0, text[:-1], 1)
    model.decode(batch)
    found, path = list[Logits](), BlockPath(seq, text[-1], None)
    for depth in range(3):
        logits, hidden = model.guess([path], depth)
        found.append(logits[0].copy())
        path = BlockPath(seq, 400 + depth, hidden[0].copy())
    return np.stack(found)


def test_block_copies_guess_like_one(tmp_path: Path):
    accepted = list[tuple[int, int]]()
    texts = list[list[tuple[int, ...]]]()
    for n in (1, 3):
        path = tmp_path / f"{n}.gguf"
        join(BUNDLED_MODEL, BLOCK, path, n)
        with closing(open_exact(path, weights=Weights(mtp=True))) as target:
            assert target.model.n_blocks == n
            with closing(LlamaBlock(target)) as block:
                assert block.n_depths == (0 if n == 1 else n)
                assert block.how == ("at any depth" if n == 1 else "one for each of 3 depths")
                outcomes = converse(harness(WithBlock(target, block), 4), asks(target, 3, 1.0))
        counts = [outcome.finished.stats.drafters["mtp"] for outcome in outcomes]
        accepted.append((sum(c.accepted for c in counts), sum(c.drafted for c in counts)))
        texts.append(said(outcomes))
    assert texts[0] == texts[1]
    assert accepted[0] == accepted[1]
    assert 50 < accepted[0][0] < accepted[0][1]


def test_several_blocks_guess_no_deeper_than_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "step35.gguf"
    write(path, STEP35)
    for most, n_depths in ((0, 3), (2, 2), (7, 3)):
        settings = read(LeadSettings, ["--model", str(path), "--mtp-max", str(most)])
        with ExitStack() as stack, caplog.at_level("INFO", logger="duo.lead"):
            target = stack.enter_context(closing(open_exact(path, weights=settings.weights)))
            model, inline = drafting_inside(stack, settings, None, target)
            assert isinstance(model, WithBlock)
            assert inline is not None
            assert inline.most == model.block.n_depths == n_depths
        told = f"draft    the prediction blocks in step35, one for each of {n_depths} depths"
        assert told in caplog.messages[-1]


def test_unsupported_blocks_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "step35.gguf"
    write(path, STEP35)
    monkeypatch.setattr("server.llama.library.CHAINED", ())
    with closing(LoadedModel(path, Weights(mtp=True))) as model:
        assert model.n_blocks == 0
    assert "llama.cpp cannot evaluate the 3 prediction blocks of step35" in caplog.text


def test_assistant_drafts_in_the_lead(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path, assistant = tmp_path / "target.gguf", tmp_path / "assistant.gguf"
    write(path, GEMMA4)
    write(assistant, GEMMA4_ASSISTANT)
    flags = ["--model", str(path), "--draft-model", str(assistant)]
    settings = prepared(read(LeadSettings, flags))
    assert settings.draft_mode == "sync"
    without = prepared(read(LeadSettings, [*flags, "--draft-max", "0", "--draft-mode", "sync"]))
    assert (without.draft_model, without.draft_mode) == (None, "auto")
    with pytest.raises(StartupError, match="give it to duo serve or duo up with --draft-model"):
        open_exact(assistant)
    with ExitStack() as stack, caplog.at_level("INFO", logger="duo.lead"):
        target = stack.enter_context(closing(open_exact(path)))
        n_cells = target.n_cells
        model, inline = drafting_inside(stack, settings, assistant, target)
        assert isinstance(model, WithBlock)
        assert inline is not None
        assert inline.source == "mtp"
        assert model.n_cells == target.n_cells == n_cells - target.n_seqs  # a free cell for each row
    assert "draft    assistant, on the KV cache of target, at any depth" in caplog.text


def test_assistant_guesses_with_full_cache(tmp_path: Path):
    path, assistant = tmp_path / "target.gguf", tmp_path / "assistant.gguf"
    write(path, GEMMA4)
    write(assistant, GEMMA4_ASSISTANT)
    options = LlamaOptions(path, n_cells=256, n_seqs=4)
    with (
        closing(LlamaBackend(options)) as target,
        closing(Assistant(target, assistant, Weights())) as block,
    ):
        model = WithBlock(target, block)
        for seq, n in enumerate((model.n_cells - 128, 128)):
            batch = Batch()
            batch.extend(seq, 0, range(300, 300 + n), 0)
            model.decode(batch)
        logits, _ = model.guess([BlockPath(0, 9, None), BlockPath(1, 9, None)], 0)
        assert len(logits) == 2
        batch = Batch()
        batch.extend(2, 0, [300] * 4, 0)  # the cells that were kept free
        model.decode(batch)
        with pytest.raises(BackendError, match="the KV cache is full"):
            model.guess([BlockPath(0, 9, None)], 0)


def test_an_assistant_of_another_model_is_refused(tmp_path: Path):
    target, assistant = tmp_path / "gemma4.gguf", tmp_path / "assistant.gguf"
    write(target, GEMMA4)
    wide = weights(**{"nextn.pre_projection": (N_EMBD // 2, 4 * N_EMBD)})
    wide |= weights(**{"nextn.post_projection": (2 * N_EMBD, N_EMBD // 2)})
    fields = {**GEMMA4_ASSISTANT.fields, "embedding_length_out": 2 * N_EMBD}
    write(assistant, GEMMA4_ASSISTANT._replace(fields=fields, others=GEMMA4_ASSISTANT.others | wide))
    with (
        closing(open_exact(target)) as backend,
        pytest.raises(StartupError, match=r"model with 128 channels .*, not of gemma4 with 64") as raised,
    ):
        Assistant(backend, assistant, Weights())
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(("kind", "source", "n"), [(DFLASH, "dflash", 3), (DSPARK, "dspark", 4)])
def test_flash_heads_draft_in_the_lead(
    kind: RandomKind, source: str, n: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path, head = tmp_path / "target.gguf", tmp_path / "head.gguf"
    write(path, QWEN3)
    write(head, kind)
    with pytest.raises(StartupError, match="give it to duo serve or duo up with --draft-model"):
        open_exact(head)
    for most, n_depths in ((0, n), (2, 2)):
        flags = ["--model", str(path), "--draft-model", str(head), "--mtp-max", str(most)]
        settings = prepared(read(LeadSettings, flags))
        assert settings.draft_mode == "sync"
        with ExitStack() as stack, caplog.at_level("INFO", logger="duo.lead"):
            target = stack.enter_context(closing(load_target(settings, 1)))
            model, inline = drafting_inside(stack, settings, head, target)
            assert isinstance(model, WithBlock)
            assert inline is not None
            assert (inline.source, inline.most) == (source, n_depths)
    assert "head in head.gguf, in this process" in caplog.text


@pytest.mark.parametrize(
    "reason", ["its file names no mask token", "it reads layer 4, and the last one is 3"]
)
def test_unfit_flash_heads_are_refused(reason: str, tmp_path: Path):
    path, head = tmp_path / "target.gguf", tmp_path / "head.gguf"
    write(path, QWEN3)
    fields = dict(DFLASH.fields)
    if "mask" in reason:
        del fields["tokenizer.ggml.mask_token_id"]
    else:
        fields["target_layers"] = [0, 4]
    write(head, DFLASH._replace(fields=fields))
    with closing(open_exact(path)) as target, pytest.raises(StartupError, match=reason) as raised:
        DFlashHead(target, head)
    assert "\n" not in raised.value.message


def test_flash_head_of_another_kind_is_refused(tmp_path: Path):
    path, head = tmp_path / "jamba.gguf", tmp_path / "head.gguf"
    write(path, GRANITE_HYBRID)
    write(head, DFLASH)
    with (
        closing(open_exact(path)) as target,
        pytest.raises(StartupError, match="layers of architecture granite"),
    ):
        DFlashHead(target, head)
