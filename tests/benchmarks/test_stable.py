"""Equal texts: what counts as one, the table, and that every way of drafting is asked for by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import stable
from benchmarks.client import Reply
from benchmarks.stable import BUS, NONE, TIERS, WAYS


def reply(text: str, drafted: int = 0, accepted: int = 0) -> Reply:
    return Reply(text, 3, 1.0, 1.0, None, drafted, accepted)


def test_replies_are_compared_with_the_first_of_their_prompt():
    first = [reply("a"), reply("b")]
    own = [reply("a", 4, 2), reply("b"), reply("x", 1), reply("b")]
    said = {(way.name, tier): first if way.name == NONE else own for way in WAYS for tier in TIERS}
    lines = stable.table(said, 2).splitlines()
    assert lines[0] == "| drafts | width-stable | default | drafts accepted |"
    assert lines[2] == "| none | 2 of 2 | 2 of 2 | 0 of 0 |"
    assert lines[3:] == [f"| {way.name} | 3 of 4 | 3 of 4 | 4 of 10 |" for way in WAYS[1:]]


def test_each_tier_has_its_own_text():
    said = {(way.name, tier): [reply(tier)] for way in WAYS for tier in TIERS}
    assert stable.table(said, 1).count("1 of 1") == 2 * len(WAYS)


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
