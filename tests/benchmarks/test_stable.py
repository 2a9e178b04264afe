"""Equal texts: what counts as one, the table, and that every way of drafting is asked for by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import stable
from benchmarks.client import Reply
from benchmarks.stable import BUS, TIERS, WAYS, Count


def reply(text: str, drafted: int = 0, accepted: int = 0) -> Reply:
    return Reply(text, 3, 1.0, 1.0, None, drafted, accepted)


def test_replies_are_compared_with_the_first_of_their_prompt():
    first = [reply("a"), reply("b")]
    own = [reply("a", 4, 2), reply("b"), reply("x", 1), reply("b")]
    assert stable.count(own, first) == Count(3, 4, 5, 2)
    assert stable.count(first, first) == Count(2, 2, 0, 0)


def test_the_table_has_a_row_for_every_way_and_a_column_for_every_tier():
    counts = {(way.name, tier): Count(i, 9, 10, 5) for way in WAYS for i, tier in enumerate(TIERS)}
    lines = stable.table(counts).splitlines()
    assert lines[0] == "| drafts | width-stable | default | drafts accepted |"
    assert lines[2:] == [f"| {way.name} | 0 of 9 | 1 of 9 | 10 of 20 |" for way in WAYS]


def test_the_drafters_that_are_asked_for_are_those_that_run(tmp_path: Path):
    args = stable._parser().parse_args(["--device", "0", "--draft-device", "1"])  # pyright: ignore[reportPrivateUsage]
    commands = stable.drafters(args, "redis://here", tmp_path / "texts")
    asked = {name for way in WAYS if way.lead == BUS for name in way.wanted.get("drafters", ())}
    assert asked == {command.name for command in commands}
    for command in commands:
        assert command.arguments[command.arguments.index("--name") + 1] == command.name
    assert commands[0].arguments[:2] == ("env", "CUDA_VISIBLE_DEVICES=1")
    for lead in stable.leads(args, "redis://here"):
        assert lead.arguments[:2] == ("env", "CUDA_VISIBLE_DEVICES=0")


def test_a_missing_model_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    model = tmp_path / "none.gguf"
    model.write_bytes(b"no model")
    assert stable.main(["--model", str(model), "--prompts", "1"]) == 1
    assert "stable:" in capsys.readouterr().err
