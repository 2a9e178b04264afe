"""A head of the target on another device, over a real Redis: its guesses count, and no text depends on it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.with_block import BLOCK, join
from server.settings import BUNDLED_MODEL
from tests.model.test_block_file import OF_BLOCK
from tests.model.test_eagle3_head import changed
from tests.model.test_prediction_block import rewritten
from tests.process.duo import Duo, endless_reply, joined, printed, until

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(240)]

HEAD = BLOCK.with_name("duo-tiny-eagle3-q8_0.gguf")
ASKED: dict[str, Any] = {"max_tokens": 96, "ignore_eos": True}
JOINS_S = 60.0  # a head loads, joins and has guesses accepted in a tenth of it on an idle machine
UP = ("--threads", "1", "--no-gate", "--no-lookup", "--drafters", "0", "--exactness", "width-stable")


class Pair(NamedTuple):
    """A target and its head, in files of their own."""

    target: Path
    head: Path
    shown: str  # how the head is shown

    def up(self) -> tuple[str, ...]:
        """Return the arguments of a duo with the target, in which every bit counts."""
        return ("up", "--model", str(self.target), *UP)

    def by_head(self, duo: Duo) -> list[str]:
        """Return the arguments by which the head joins a duo."""
        join = printed(duo)
        redis = join[join.index("--redis") + 1]
        return ["draft", "--redis", redis, "--head", str(self.head), "--vocab-from", str(self.target)]


EAGLE3 = Pair(BUNDLED_MODEL, HEAD, f"the EAGLE-3 head in {HEAD.name}")


@pytest.fixture(params=["eagle3", "mtp"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    if request.param == "eagle3":
        return EAGLE3
    whole, target, block = (tmp_path / name for name in ("whole.gguf", "model.gguf", "mtp-model.gguf"))
    join(BUNDLED_MODEL, BLOCK, whole)

    def is_of_block(tensor: gguf.ReaderTensor) -> bool:
        return tensor.name.startswith(OF_BLOCK)

    def of_model(tensor: gguf.ReaderTensor) -> npt.NDArray[Any] | None:
        return None if is_of_block(tensor) else np.array(tensor.data)

    def of_block(tensor: gguf.ReaderTensor) -> npt.NDArray[Any] | None:
        is_layer = tensor.name.startswith("blk.") and not is_of_block(tensor)
        return None if is_layer else np.array(tensor.data)

    rewritten(whole, target, of_model)
    rewritten(whole, block, of_block)
    return Pair(target, block, "the prediction block in mtp-model")


def said(duo: Duo) -> str:
    return str(duo.ask("Explain lists in Python.", **ASKED)["choices"][0]["message"]["content"])


def accepted(duo: Duo) -> int:
    return sum(one["counts"].get("accepted", 0) for one in duo.drafters())


def test_head_comes_again_and_changes_no_bit(pair: Pair, tmp_path: Path):
    with Duo(tmp_path, *pair.up()) as duo:
        duo.wait_until_ready()
        plain = said(duo)
        for _ in range(2):
            with closing(endless_reply(duo)) as chunks, joined(pair.by_head(duo), tmp_path) as drafter:
                until(lambda: next(chunks) and accepted(duo), JOINS_S, "no guess of the head was accepted")
                assert [(one["kind"], one["model"]) for one in duo.drafters()] == [("head", pair.shown)]
                drafter.kill()
                until(lambda: next(chunks) and not duo.drafters(), JOINS_S, "the lead did not miss it")
                assert len([next(chunks) for _ in range(20)]) == 20, "the reply went on"
        with joined(pair.by_head(duo), tmp_path):
            until(duo.drafters, JOINS_S, "the head did not come back")
            until(lambda: said(duo) == plain and accepted(duo), JOINS_S, "no guess of the head was accepted")


def test_wrong_head_is_refused_in_one_line(tmp_path: Path):
    pair = EAGLE3._replace(head=changed(tmp_path / "other.gguf", width=256))
    with Duo(tmp_path, *pair.up()) as duo:
        duo.wait_until_ready()
        with joined(pair.by_head(duo), tmp_path):
            log = tmp_path / "drafter.log"
            said = "its head is for targets of width 256, and this one has 512"
            until(lambda: said in log.read_text(), JOINS_S, "the drafter was not refused")
            assert duo.drafters() == []
        assert [said in line for line in log.read_text().splitlines()].count(True) == 1
        assert said in duo.log.read_text()
