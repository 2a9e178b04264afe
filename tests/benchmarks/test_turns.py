"""Turns of conversations: what is said, what is counted, and the program over servers of words."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import processes, turns
from benchmarks.client import Reply, ReplyError, ask, call
from benchmarks.processes import Command, Process
from benchmarks.prompts import Prompt
from benchmarks.turns import (
    AFTER,
    ALONE,
    BACK,
    COLD,
    DISK,
    FIRST,
    SECOND,
    TITLE,
    WARM,
    Author,
    Conversation,
    Sample,
    line,
    pieces_of,
    table,
)
from server.settings import BUNDLED_MODEL

STUB = (sys.executable, "-m", "tests.benchmarks.stub_cache", "--port", "{port}")
HISTORY, SYSTEM, SHARING, ROUNDS = 500, 300, 3, 2
N_NEW = 13  # words of a reply and a question, with their marks


def words(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


def turn(ms: float, cached: int) -> Reply:
    return Reply("text", 5, ms, n_prompt=100, n_cached=cached)


def sample(scenario: str, ours: float, theirs: float, history: int = 1000) -> Sample:
    """Return a sample in which a quarter of the other server's time is restoring."""
    return Sample(scenario, history, (turn(ours, 90), turn(0.75 * theirs, 80)), theirs / 4)


# -- what is said ----------------------------------------


@pytest.mark.parametrize("n", [1, 200, 201, 400, 999, 3500])
def test_opening_length_and_last_role(n: int):
    messages = Author(words).opening(n)
    assert len(words("".join(message["content"] for message in messages))) == n
    roles = [message["role"] for message in messages]
    assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
    assert roles[-1] == "user"
    assert all(len(words(message["content"])) <= 400 for message in messages)


def test_openings_repeat_and_differ():
    first, second = Author(words), Author(words)
    openings = [first.opening(50) for _ in range(30)]
    assert openings == [second.opening(50) for _ in range(30)]
    assert len({words(opening[0]["content"])[0] for opening in openings}) == 30
    assert len({opening[0]["content"].split(maxsplit=1)[1] for opening in openings}) == 30


def test_each_server_hears_its_own_replies():
    opening = [{"role": "user", "content": "a"}]
    conversation = Conversation(opening, 2)
    conversation.hear(0, "x")
    conversation.hear(1, "y")
    conversation.say("b")
    for i, reply in enumerate("xy"):
        assert conversation.messages(i) == [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": reply},
            {"role": "user", "content": "b"},
        ]
    assert conversation.opening == opening == [{"role": "user", "content": "a"}]


# -- what is asked ----------------------------------------


@pytest.fixture
def stub() -> Iterator[Process]:
    with Process(Command("stub", STUB)) as server:
        server.wait_ready()
        yield server


def test_a_turn_of_a_real_stream(stub: Process):
    messages = [{"role": "user", "content": "one two three"}]
    first = ask(stub.port, Prompt("p", messages), 8)
    assert (first.text, first.n_prompt, first.n_cached) == ("reply 1 ", 4, 0)
    assert first.first_ms > 0
    more = [*messages, {"role": "assistant", "content": first.text}, {"role": "user", "content": "four"}]
    assert ask(stub.port, Prompt("p", more), 1).n_cached == 4
    assert pieces_of(stub.port, "one  two three") == ["one", "  two", " three"]


def test_refusal_of_a_server_is_reported(stub: Process):
    with pytest.raises(ReplyError, match=r"/slots/0\?action=save: HTTP 501: no such thing here"):
        call(stub.port, "/slots/0?action=save", {"filename": "f"})
    stub.stop()
    with pytest.raises(ReplyError, match="does not answer"):
        call(stub.port, "/slots")


# -- what comes out ----------------------------------------


def test_ratios_are_medians_of_pairs():
    row = table([sample(WARM, *ms) for ms in ((10, 100), (40, 20), (30, 60))]).splitlines()[-1]
    assert row == "| warm turn | 1000 | 100 | 30.0 | 60.0 | 0.50 | 90 | 80 | 15.0 |"


def test_rows_follow_scenario_then_history():
    samples = [sample(s, 1, 1, h) for h in (3500, 1000) for s in (COLD, WARM)]
    rows = [row.split(" | ")[:2] for row in table(samples).splitlines()[2:]]
    assert rows == [[f"| {s}", h] for s in (COLD, WARM) for h in ("1000", "3500")]


def test_the_table_has_a_row_for_each():
    text = table([sample(COLD, 400, 500), sample(WARM, 20, 40)])
    header, rule, *rows = text.splitlines()
    assert rows == [
        "| cold | 1000 | 100 | 400.0 | 500.0 | 0.80 | 90 | 80 | 125.0 |",
        "| warm turn | 1000 | 100 | 20.0 | 40.0 | 0.50 | 90 | 80 | 10.0 |",
    ]
    assert {header.count("|"), rule.count("|"), rows[0].count("|")} == {10}


def test_a_sample_in_a_line():
    assert line(sample(WARM, 12.34, 50)).endswith(
        ": " + "    12.3 ms (90 of 100 cached) |     50.0 ms (80 of 100 cached)"
    )


# -- the program ----------------------------------------


@pytest.fixture
def llama_server(tmp_path: Path) -> Path:
    """Return an executable that takes llama-server's flags."""
    binary = tmp_path / "llama-server"
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.benchmarks.stub_cache "$@"\n')
    binary.chmod(0o755)
    return binary


def test_both_servers_get_the_same_sizes(tmp_path: Path, llama_server: Path):
    flags = [
        "--llama-server",
        str(llama_server),
        "--model",
        "m.gguf",
        "--threads",
        "3",
        "--llama-flags=-kvu -fa on",
    ]
    args = turns._parser().parse_args(flags)  # pyright: ignore[reportPrivateUsage]
    ours, theirs = (" ".join(command.arguments) for command in turns.commands(args, tmp_path))
    for text in (ours, theirs):
        assert "--model m.gguf --ctx-size 16384 --parallel 4 --threads 3 --cache-ram 4096" in text
    assert f"--cache-dir {tmp_path}/duo --cache-disk 8192" in ours
    assert f"--slots --slot-save-path {tmp_path}/llama/ --cache-reuse 256" in theirs
    assert theirs.endswith("-kvu -fa on")


def test_work_after_replies_is_awaited(monkeypatch: pytest.MonkeyPatch):
    if sys.platform != "linux":
        pytest.skip("CPU times are read from /proc")
    monkeypatch.setattr(turns, "TURN_POLL_S", 0.3)
    monkeypatch.setattr(turns, "MOVED_S", 60.0)
    code = "import threading, time\nwhile time.process_time() < 1: pass\nthreading.Event().wait()"
    with Process(Command("busy", (sys.executable, "-c", code))) as busy:
        while not busy.cpu_seconds():
            busy.check_alive()
        turns.settle([busy])
        assert (busy.cpu_seconds() or 0) >= 0.9


def test_every_scenario_is_taken_by_both_servers(
    llama_server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def duo(command: str, **options: object) -> tuple[str, ...]:
        return (*STUB, *processes.flags(**options))

    monkeypatch.setattr("benchmarks.turns.duo", duo)
    monkeypatch.setattr(turns, "TURN_POLL_S", 0.001)
    flags = ["--llama-server", str(llama_server), "--model", str(BUNDLED_MODEL), "--histories", str(HISTORY)]
    flags += ["--system", str(SYSTEM), "--conversations", str(SHARING), "--rounds", str(ROUNDS)]
    results = tmp_path / "RESULTS.md"
    assert turns.main([*flags, "--append", str(results)]) == 0
    text = results.read_text()
    out = capsys.readouterr().out
    assert text.strip() in out
    assert str(tmp_path) not in text
    cells = [row[2:-2].split(" | ") for row in text.splitlines() if row.startswith("| ")][2:]
    assert [row[0] for row in cells] == [COLD, WARM, TITLE, AFTER, ALONE, FIRST, SECOND, BACK, DISK]
    n_samples = {name: out.count(f"{HISTORY} {name} ") for name in (FIRST, SECOND, DISK)}
    assert n_samples == {FIRST: ROUNDS * (SHARING - 1), SECOND: ROUNDS * SHARING, DISK: ROUNDS}
    n_prompt = {row[0]: int(row[2]) for row in cells}
    reused = {row[0]: [int(cell) for cell in row[6:8]] for row in cells}
    assert reused[COLD] == [1, 1]  # the mark of the user's message
    assert reused[FIRST] == [SYSTEM + 2] * 2
    for name in (WARM, AFTER, SECOND, BACK, DISK):
        assert n_prompt[name] > HISTORY
        assert reused[name] == [n_prompt[name] - N_NEW] * 2, name
    assert n_prompt[ALONE] == N_NEW


def test_a_binary_that_cannot_be_executed(capsys: pytest.CaptureFixture[str]):
    assert turns.main(["--llama-server", str(BUNDLED_MODEL)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("turns: ")
    assert "cannot be executed" in error


def test_a_server_that_does_not_start(
    llama_server: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def duo(*flags: str, **options: object) -> tuple[str, ...]:
        return (sys.executable, "-c", "raise SystemExit('no cache')")

    monkeypatch.setattr("benchmarks.turns.duo", duo)
    assert turns.main(["--llama-server", str(llama_server), "--model", str(BUNDLED_MODEL)]) == 1
    assert capsys.readouterr().err == "turns: duo ended with status 1: no cache\n"
