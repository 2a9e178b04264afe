"""A prediction block in a file of its own drafts as one in the model's file does, or is refused."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.inflate import convert
from benchmarks.with_block import BLOCK, join
from drafters.head_drafter import HeadDrafter, open_head
from server.errors import StartupError
from server.lead.loading import drafting_inside, load_target, prepared
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.mtp import BlockFile, LlamaBlock
from server.llama.options import Weights
from server.llama.with_block import WithBlock
from server.settings import BUNDLED_MODEL, LeadSettings
from tests.model.conftest import open_exact
from tests.model.duet import Duet, counts
from tests.model.test_prediction_block import asks, assert_right_and_wrong, harness, rewritten, said
from tests.support import Outcome

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

OF_BLOCK = "blk.8."  # its tensors' names begin so: those of the bundled model have 0 to 7


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model's file with its prediction block, in floats of 32 bits."""
    folder = tmp_path_factory.mktemp("block-file")
    join(BUNDLED_MODEL, BLOCK, folder / "quantised.gguf")
    convert(folder / "quantised.gguf", folder / "whole.gguf")
    return folder / "whole.gguf"


@pytest.fixture(scope="module")
def model(whole: Path) -> Path:
    """Return the file without the block."""

    def kept(tensor: gguf.ReaderTensor) -> npt.NDArray[Any] | None:
        return None if tensor.name.startswith(OF_BLOCK) else np.array(tensor.data)

    return rewritten(whole, whole.with_name("model.gguf"), kept)


@pytest.fixture(scope="module")
def block(whole: Path) -> Path:
    """Return a file with the block, embeddings and output only."""

    def kept(tensor: gguf.ReaderTensor) -> npt.NDArray[Any] | None:
        is_layer = tensor.name.startswith("blk.") and not tensor.name.startswith(OF_BLOCK)
        return None if is_layer else np.array(tensor.data)

    return rewritten(whole, whole.with_name("mtp-model.gguf"), kept)


def test_own_file_guesses_alike(whole: Path, model: Path, block: Path):
    outcomes: dict[Path, list[Outcome]] = {}
    for path, own in ((whole, None), (model, block)):
        with closing(open_exact(path, weights=Weights(mtp=own is None))) as target:
            made = BlockFile(target, own) if own else LlamaBlock(target)
            with closing(made):
                outcomes[path] = harness(WithBlock(target, made), 4).run(*asks(target, 4, 1.0))
    assert said(outcomes[model]) == said(outcomes[whole])
    assert_right_and_wrong(outcomes[model])
    counts = [[one.finished.stats.drafters for one in outcomes[path]] for path in (model, whole)]
    assert counts[0] == counts[1]


def test_block_file_drafts_elsewhere(model: Path, block: Path):
    """It sees only the rows that the lead sends, and another context's vocabulary."""
    options = LlamaOptions(block, n_cells=4096, n_seqs=4, n_threads=1)
    with (
        closing(open_exact(model)) as target,
        closing(LlamaBackend(replace(options, model_path=model))) as donor,
    ):
        head, card = open_head(block, donor, options)
        with closing(head):
            outcomes = Duet(target, drafter=(HeadDrafter(head), card)).run(*asks(target, 2, 0.0))
    accepted, drafted = counts(outcomes)
    assert drafted > 0
    assert accepted > 0.3 * sum(len(one.tokens) for one in outcomes)


def test_block_file_is_a_draft_model(model: Path, block: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    settings = prepared(LeadSettings.model_validate({"model": model, "draft_model": block, "ctx_size": 256}))
    assert settings.draft_mode == "sync"
    with ExitStack() as stack:
        target = stack.enter_context(closing(load_target(settings, 1)))
        found, inline = drafting_inside(stack, settings, block, target)
        assert isinstance(found, WithBlock)
        assert inline is not None
        assert inline.source == "mtp"
    assert "the prediction block in mtp-model, in this process" in caplog.text


@pytest.mark.parametrize("kind", ["architecture", "block"])
def test_unfit_block_files_are_refused(kind: str, model: Path, block: Path):
    path, other = (BUNDLED_MODEL, block) if kind == "architecture" else (model, model)
    reason = {
        "architecture": "it is for targets of architecture mimo2, and this one is llama",
        "block": "it has no prediction block that llama.cpp can evaluate",
    }[kind]
    with closing(LlamaBackend(LlamaOptions(path, n_cells=256, n_seqs=2))) as target:
        with pytest.raises(StartupError, match=reason) as raised:
            BlockFile(target, other)
        assert "\n" not in raised.value.message


def test_block_file_is_no_target(block: Path):
    options = LlamaOptions(block, n_cells=256, n_seqs=2)
    for one in (options, replace(options, weights=Weights(mtp=True))):
        with pytest.raises(StartupError, match=r"is a prediction block, .* give it to .* --draft-model"):
            LlamaBackend(one)
