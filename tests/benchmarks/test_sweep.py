"""The sweep over real processes: texts, crashes, commands, tables, and once the whole of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks import sweep, texts
from benchmarks.client import Reply
from benchmarks.contest import Heat
from benchmarks.faults import Crash, Crew, parse_schedule
from benchmarks.processes import Command
from benchmarks.prompts import Prompt, load
from server.errors import StartupError
from server.settings import BUNDLED_MODEL
from tests.fake_backend import FakeBackend, FakeModel
from tests.support import until

MODEL = Path("model.gguf")
SETTING = sweep.Setting(0.8, 8.0, 0.5, n_drafters=2)
TARGET = sweep.Target(50.0, {0: 1.0, 1: 1.1, 3: 1.2, 7: 1.5, 8: 1.9}, load(2), [(1, 2), (3, 4)])
PROMPT = Prompt("p", [{"role": "user", "content": "Say something."}])
MEMBER = "import os, signal, sys; open(os.path.join(sys.argv[1], str(os.getpid())), 'w'); signal.pause()"


def reply(text: str, rate: float, n_tokens: int = 40) -> Reply:
    return Reply(text, n_tokens, 1.0, rate, rate)


# -- texts


def test_texts_are_what_the_engine_says_each_from_an_empty_cache(tmp_path: Path):
    backend = FakeBackend(FakeModel(eog_rate=0.0))
    first, second, again = texts.record(backend, [PROMPT, *load(1), PROMPT], 30)
    assert first == again != second
    prompt = first[:-30]
    rendered = "".join(backend.vocab.piece(token, special=True).decode() for token in prompt)
    assert rendered == "<|im_start|>user\nSay something.<|im_end|>\n<|im_start|>assistant\n"
    assert all(backend.length(seq) == 0 for seq in range(backend.n_seqs))
    texts.save([first, second], tmp_path / "texts.jsonl")
    lines = (tmp_path / "texts.jsonl").read_text().splitlines()
    assert [tuple(json.loads(line)) for line in lines] == [first, second]


def test_a_text_ends_with_its_stop_token():
    backend = FakeBackend(FakeModel(eog_rate=0.2))
    (text,) = texts.record(backend, [PROMPT], 400)
    assert text[-1] in backend.vocab.eog


# -- crashes


@pytest.mark.parametrize("text", ["", "1", "a:b", "-1:2", "1:-1", "2:2,3:1"])
def test_a_schedule_that_is_none_is_refused(text: str):
    with pytest.raises(ValueError, match=r".*"):
        parse_schedule(text)


def test_a_schedule():
    assert parse_schedule("2:1,5:0.5") == (Crash(2, 1), Crash(5, 0.5))


def alive(directory: Path) -> set[int]:
    found = {int(entry.name) for entry in directory.iterdir()}
    for pid in list(found):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            found.discard(pid)
    return found


def members(directory: Path, n: int) -> list[Command]:
    return [Command(f"member-{i}", (sys.executable, "-c", MEMBER, str(directory))) for i in range(n)]


def test_a_crew_dies_returns_and_ends(tmp_path: Path):
    with Crew(members(tmp_path, 2), [Crash(0.0, 0.05)], lambda: len(alive(tmp_path))) as crew:
        until(lambda: len(list(tmp_path.iterdir())) == 4, "no second start")
        until(lambda: len(alive(tmp_path)) == 2, "they did not return")
        until(lambda: crew.n_returns == 1, "the return was not counted")
        early = crew.share_present()
        assert 0 < early < 1
        until(lambda: crew.share_present() > early, "presence was not counted")
    assert not alive(tmp_path)


def test_a_crew_that_does_not_return_is_an_error(tmp_path: Path):
    """The second start finds the directory gone."""
    script = (
        f"{MEMBER.partition('signal.pause')[0]}os.rename(sys.argv[1], sys.argv[1] + '-2'); signal.pause()"
    )
    directory = tmp_path / "members"
    directory.mkdir()
    command = Command("once", (sys.executable, "-c", script, str(directory)))

    def n_present() -> int:
        return len(alive(tmp_path / "members-2")) if (tmp_path / "members-2").exists() else 0

    with pytest.raises(StartupError, match="once ended with status 1"):
        with Crew([command], [Crash(0.0, 0.0)], n_present) as crew:
            until(lambda: crew.failure, "the failure was not noticed")
    assert n_present() == 0


def test_a_crew_without_crashes_is_there_all_the_time(tmp_path: Path):
    with Crew(members(tmp_path, 1), [], lambda: len(alive(tmp_path))) as crew:
        assert crew.share_present() == 1
    assert not alive(tmp_path)


def test_a_member_that_ends_by_itself_is_told():
    command = Command("fragile", (sys.executable, "-c", "raise SystemExit('no such flag')"))
    with pytest.raises(StartupError, match="fragile ended with status 1: no such flag"):
        with Crew([command], [], lambda: 0):
            pass


# -- what is run and what comes out


def test_drafters_are_told_times_in_milliseconds():
    first, second = sweep.drafters(MODEL, SETTING, 50.0, "unix:///tmp/x", Path("texts.jsonl"))
    line = " ".join(first.arguments)
    assert "--kind replay" in line
    assert "--accept 0.8 --td-ms 6.25 --latency-ms 25" in line
    assert ("--seed 1" in line, "--seed 2" in " ".join(second.arguments)) == (True, True)


def test_a_row_counts_equal_texts_only_and_long_ones_more():
    heats = [
        Heat(PROMPT, [reply("a", 10), reply("a", 20)]),
        Heat(PROMPT, [reply("c", 10), reply("other", 90)]),
        Heat(PROMPT, [reply("d", 10, 118), reply("d", 30, 118)]),
    ]
    row = sweep.row(SETTING, heats, TARGET, 8, present=0.5)
    assert row.measured is not None
    assert row.measured == pytest.approx(15.6 / (1.95 + 3.9))
    assert (row.n_equal, row.n_heats) == (2, 3)
    whole = sweep.row(SETTING, heats, TARGET, 8, present=1.0)
    assert row.expected == pytest.approx((whole.expected + 1) / 2)
    assert 1 < whole.expected < whole.limit
    cells = sweep.table([row]).splitlines()[-1].split(" | ")
    assert cells[4:6] == ["50 %", "2.67"]
    assert float(cells[7]) == pytest.approx(row.measured / row.expected, abs=0.01)
    assert float(cells[9]) == pytest.approx(row.measured / row.limit, abs=0.01)
    nothing = sweep.row(SETTING, heats[1:2], TARGET, 8, present=1.0)
    assert nothing.measured is None
    assert sweep.table([nothing]).count("| - |") == 3


def test_where_no_draft_pays_none_is_expected():
    assert sweep.expected(sweep.Setting(0.3, 2.0, 4.0), lambda k: 1.0 + k, 8) == 1.0


def test_a_model_that_is_missing_is_told_in_one_line(capsys: pytest.CaptureFixture[str]):
    assert sweep.main(["--model", "missing.gguf"]) == 1
    assert capsys.readouterr().err.startswith("sweep: no model file at missing.gguf")


@pytest.mark.model
@pytest.mark.redis
def test_the_whole_sweep_with_real_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = tmp_path / "RESULTS.md"
    flags = ["--model", str(BUNDLED_MODEL), "--threads", "1", "--prompts", "1", "--max-tokens", "24"]
    flags += ["--accept", ".9", "--r", "4,8", "--drafters", "2", "--append", str(results)]
    assert sweep.main(flags) == 0, capsys.readouterr().err
    rows = [line.split(" | ") for line in results.read_text().splitlines()[-2:]]
    for row, r in zip(rows, ("4", "8"), strict=True):
        assert row[:5] == ["| 2", "0", "0.9", r, "100 %"]
        assert row[-1] == "1 of 1 |"
        assert float(row[5]) > 0
