"""The programs from their flags to their tables, with a reciting server in place of the models."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks import compare, faults
from benchmarks.processes import Command, Process, start
from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from tests.benchmarks.conftest import STUB


def standings(text: str) -> dict[str, list[str]]:
    """Return the cells of the first table by the server's name."""
    table = text[text.index("| server | t/s") :].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {row[0]: row for row in rows}


@pytest.mark.usefixtures("reciting_duo")
def test_compare_prints_and_appends_its_table(
    llama_server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    results = tmp_path / "RESULTS.md"
    results.write_text("# Results\n")
    flags = ["--llama-server", str(llama_server), "--sweep", "4", "--prompts", "2", "--max-tokens", "20"]
    assert compare.main([*flags, "--append", str(results)]) == 0
    text = results.read_text()
    assert text.startswith("# Results\n\n## ")
    assert text.removeprefix("# Results\n\n").strip() in capsys.readouterr().out
    rivals = ("llama-server, draft 4, p_min 0", "llama-server, ngram-mod")
    for server in ("llama-server", "duo", *rivals, "duo, drafts"):
        assert f"| {server} | 100.0 | 1.00 |" in text
    assert [row[-2] for row in standings(text).values()] == ["2 of 2"] * 5
    assert "| duo, drafts : duo |" in text
    assert "| tokens per second | code | extract |" in text
    assert "duo: 42 µs of Python in a one-session step" in text
    assert str(tmp_path) not in text


@pytest.mark.model
@pytest.mark.redis
def test_compare_runs_the_real_duo(llama_server: Path, capsys: pytest.CaptureFixture[str]):
    flags = ["--llama-server", str(llama_server), "--sweep", "4", "--prompts", "2", "--max-tokens", "24"]
    flags += ["--duo-flags=--no-gate"]  # drafts do not pay with so small a model
    assert compare.main([*flags, "--threads", "1"]) == 0
    out = capsys.readouterr().out
    rows = standings(out)
    assert float(rows["duo"][1]) > 0
    assert rows["duo"][7] == "-"
    assert " of " in rows["duo, drafts"][7]
    assert "µs of Python" in out


def test_all_servers_get_same_options(llama_server: Path):
    flags = ["--llama-server", str(llama_server), "--sweep", "4,8", "--p-min", "0,0.5", "--threads", "3"]
    args = compare._parser().parse_args(flags)  # pyright: ignore[reportPrivateUsage]
    commands = {command.name: " ".join(command.arguments) for command in compare.commands(args)}
    assert list(commands)[:2] == ["llama-server", "duo"]
    assert len(commands) == 8
    assert "--spec-type ngram-mod" in commands["llama-server, ngram-mod"]
    assert all(f" {args.model} " in line for line in commands.values())
    assert all(" -t 3 " in line or " --threads 3 " in line for line in commands.values())
    assert "--spec-draft-n-max 8" in commands["llama-server, draft 8, p_min 0.5"]
    assert "--spec-draft-p-min 0.5" in commands["llama-server, draft 8, p_min 0.5"]
    assert "--draft-max 0" in commands["duo"]


def drafting_lines(*more: str) -> dict[str, str]:
    args = compare._parser().parse_args(["--llama-server", "x", *more])  # pyright: ignore[reportPrivateUsage]
    return {one.name: " ".join(one.arguments) for one in compare.commands(args)[2:]}


def test_compare_picks_rivals_by_the_file(tmp_path: Path):
    model = tmp_path / "with-block.gguf"
    with closing(gguf.GGUFWriter(model, "mimo2")) as writer:
        writer.add_tensor("blk.4.nextn.eh_proj.weight", np.ones((4, 8), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    lines = drafting_lines("--model", str(model), "--sweep", "1,2")
    *rivals, ours = lines
    assert rivals == [
        f"llama-server, draft-mtp{more} {n}, p_min 0" for more in ("", ",ngram-mod") for n in (1, 2)
    ]
    assert "--spec-type draft-mtp,ngram-mod --spec-draft-n-max 2" in lines[rivals[-1]]
    assert not any("-draft-model" in line or "--model-draft" in line for line in lines.values())
    assert ours == "duo, drafts"


def test_compare_takes_kinds_and_a_head(tmp_path: Path):
    lines = drafting_lines("--sweep", "3", "--eagle3", "head.gguf")
    assert (
        "--model-draft head.gguf --spec-type draft-eagle3" in lines["llama-server, draft-eagle3 3, p_min 0"]
    )
    assert f"--model-draft {DRAFT} --spec-type draft-simple" in lines["llama-server, draft 3, p_min 0"]
    lines = drafting_lines("--sweep", "3,4", "--spec-type", "ngram-mod,ngram-map-k4v")
    assert list(lines) == ["llama-server, ngram-mod,ngram-map-k4v", "duo, drafts"]


@pytest.mark.parametrize("flag", ["--llama-server", "--model", "--draft-model"])
def test_compare_names_the_file_that_is_missing(
    flag: str, llama_server: Path, capsys: pytest.CaptureFixture[str]
):
    assert compare.main(["--llama-server", str(llama_server), flag, "missing"]) == 1
    assert capsys.readouterr().err == "compare: no file at missing\n"


@pytest.mark.usefixtures("reciting_duo")
def test_compare_measures_bad_drafters(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def enter(
        stack: ExitStack, args: argparse.Namespace, *_: object
    ) -> tuple[list[Process], Callable[[], None]]:
        commands = [Command(f"duo, {fault} drafter", STUB) for fault in args.faults]
        return start(stack, commands), lambda: print("joined")

    monkeypatch.setattr(faults, "enter", enter)
    flags = ["--faults", "dead,lying", "--prompts", "2", "--max-tokens", "20"]
    assert compare.main(flags) == 0
    out = capsys.readouterr().out
    assert "joined" in out
    assert list(standings(out)) == ["duo", "duo, dead drafter", "duo, lying drafter"]


def test_compare_needs_an_opponent(capsys: pytest.CaptureFixture[str]):
    assert compare.main([]) == 1
    assert "give --llama-server; or, for duo alone, --clients" in capsys.readouterr().err


def test_compare_refuses_what_cannot_be_executed(capsys: pytest.CaptureFixture[str]):
    assert compare.main(["--llama-server", str(DRAFT)]) == 1
    assert "cannot be executed" in capsys.readouterr().err


@pytest.mark.usefixtures("reciting_duo")
def test_compare_measures_duo_alone_with_a_sweep(capsys: pytest.CaptureFixture[str]):
    assert compare.main(["--sweep", "1", "--prompts", "2", "--max-tokens", "20"]) == 0
    assert list(standings(capsys.readouterr().out)) == ["duo", "duo, drafts"]
