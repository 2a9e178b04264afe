"""A head of the target on another device, over a real Redis: its guesses count, and no text depends on it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.with_block import BLOCK
from server.settings import BUNDLED_MODEL
from tests.model.test_eagle3_head import changed
from tests.process.duo import Duo, endless_reply, joined, printed, until

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(240)]

HEAD = BLOCK.with_name("duo-tiny-eagle3-q8_0.gguf")
ASKED: dict[str, Any] = {"max_tokens": 96, "ignore_eos": True}
JOINS_S = 60.0  # a head loads, joins and has guesses accepted in a tenth of it on an idle machine
EXACT = ("--exactness", "width-stable")  # every bit, so that a near-tie is no excuse
UP = ("up", "--model", str(BUNDLED_MODEL), "--threads", "1", "--no-gate", "--no-lookup", "--drafters", "0")


def by_head(duo: Duo, head: Path) -> list[str]:
    """Return the arguments by which a head joins a duo."""
    join = printed(duo)
    redis = join[join.index("--redis") + 1]
    return ["draft", "--redis", redis, "--head", str(head), "--vocab-from", str(BUNDLED_MODEL)]


def accepted(duo: Duo) -> int:
    return sum(one["counts"].get("accepted", 0) for one in duo.drafters())


def test_head_comes_again_and_changes_no_bit(tmp_path: Path):
    with Duo(tmp_path, *UP, *EXACT) as duo:
        duo.wait_until_ready()
        question = "Explain lists in Python."
        plain = duo.ask(question, **ASKED)["choices"][0]["message"]["content"]
        for _ in range(2):
            with closing(endless_reply(duo)) as chunks, joined(by_head(duo, HEAD), tmp_path) as drafter:
                until(lambda: next(chunks) and accepted(duo), JOINS_S, "no guess of the head was accepted")
                assert [one["model"] for one in duo.drafters()] == [f"the EAGLE-3 head in {HEAD.name}"]
                drafter.kill()
                until(lambda: next(chunks) and not duo.drafters(), JOINS_S, "the lead did not miss it")
                assert len([next(chunks) for _ in range(20)]) == 20, "the reply went on"
        with joined(by_head(duo, HEAD), tmp_path):
            until(duo.drafters, JOINS_S, "the head did not come back")
            reply = duo.ask(question, **ASKED)
            assert accepted(duo) > 0
        assert reply["choices"][0]["message"]["content"] == plain


def test_wrong_head_is_refused_in_one_line(tmp_path: Path):
    head = changed(tmp_path / "other.gguf", width=256)
    with Duo(tmp_path, *UP, *EXACT) as duo:
        duo.wait_until_ready()
        with joined(by_head(duo, head), tmp_path):
            log = tmp_path / "drafter.log"
            said = "its head is for targets of width 256, and this one has 512"
            until(lambda: said in log.read_text(), JOINS_S, "the drafter was not refused")
            assert duo.drafters() == []
        assert [said in line for line in log.read_text().splitlines()].count(True) == 1
        assert said in duo.log.read_text()
