"""Several clients at once: the arithmetic, reciting servers, and the real processes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks import compare, contest
from benchmarks.client import Reply, ReplyError
from benchmarks.contest import ask_at_once, figures
from benchmarks.processes import Command, Process, free_port
from benchmarks.prompts import Prompt, endless, load
from drafters.drafter_settings import BUNDLED_MODEL
from tests.benchmarks.conftest import STUB

PROMPT = Prompt("p-01", [{"role": "user", "content": "?"}])


def told(n_tokens: int, asked: float, ended: float, *, text: str = "text", pieces: int = 0) -> Reply:
    step = (ended - asked) / (pieces or 1)
    at = tuple(asked + step * (i + 1) for i in range(pieces))
    return Reply(text, n_tokens, 1000.0, n_drafted=10, n_accepted=6, asked=asked, pieces=at, ended=ended)


def test_total_rate_spans_all_clients():
    found = figures([[told(30, 0.0, 2.0), told(30, 2.0, 3.0)], [told(40, 0.5, 5.0)]])
    assert found.total_rate == pytest.approx(100 / 5)
    assert (found.n_drafted, found.n_accepted) == (30, 18)


def test_slowest_client_over_mean():
    clients = [[told(40, 0.0, 2.0)], [told(10, 0.0, 1.0)], [told(30, 1.0, 2.0)]]  # 20, 10 and 30 t/s
    assert figures(clients).slowest == pytest.approx(0.5)
    assert figures(clients[:1]).slowest == 1.0


def test_gaps_stay_within_a_text():
    steady = told(100, 0.0, 10.0, pieces=100)
    found = figures([[steady, told(2, 20.0, 30.0, pieces=2)]])
    assert found.gap_p95 == pytest.approx(100.0)  # 99 gaps of 0.1 s and one of 5 s
    assert found.gap_longest == pytest.approx(5000.0)
    assert figures([[told(1, 0.0, 1.0, pieces=1)]]).gap_longest == 0.0


def test_texts_are_compared_prompt_by_prompt():
    plain = [[told(5, 0.0, 1.0, text="a"), told(5, 1.0, 2.0, text="b")], [told(5, 0.0, 1.0, text="c")]]
    drafted = [[told(5, 0.0, 0.5, text="a"), told(5, 0.5, 1.0, text="x")], [told(5, 0.0, 0.5, text="c")]]
    row = contest.bouts_table(["plain", "drafted"], [[plain, drafted]]).splitlines()[-1].split(" | ")
    assert (row[0], row[1], row[3], row[-1]) == ("| 2", "drafted", "2.00", "2 of 3 |")


def test_ratios_are_medians_of_rounds():
    bouts = [
        [[[told(10, 0.0, plain)]] * 2, [[told(10, 0.0, drafted)], [told(slow, 0.0, drafted)]]]
        for plain, drafted, slow in ((1.0, 0.5, 10), (1.0, 1.0, 6), (2.0, 1.0, 10))
    ]
    lines = contest.bouts_table(["no drafts", "drafts"], [*bouts, [[[told(1, 0.0, 1.0)]]] * 2])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()]
    assert [row[:2] for row in rows[2:]] == [[n, lead] for n in "12" for lead in ("no drafts", "drafts")]
    assert rows[4][2:6] == ["20.0", "1.00", "1.00", "1.00"]
    assert rows[5][2:6] == ["20.0", "2.00", "1.00", "0.75"]
    assert rows[5][-2:] == ["36 of 60 (60 %)", "6 of 6"]
    assert all(len(row) == len(rows[0]) for row in rows)


def test_clients_stamp_every_piece():
    with Process(Command("stub", STUB)) as server:
        server.wait_ready()
        clients = ask_at_once(server.port, [load(2), load(1), load(1)], max_tokens=7)
    assert [len(client) for client in clients] == [2, 1, 1]
    for one in (one for client in clients for one in client):
        assert one.n_tokens == len(one.pieces) == 7
        assert one.asked < one.pieces[0] <= one.pieces[-1] <= one.ended
        assert list(one.pieces) == sorted(one.pieces)


def test_silent_server_fails_the_round():
    with pytest.raises(ReplyError, match="does not answer"):
        ask_at_once(free_port(), [[PROMPT], [PROMPT]], 5)


@pytest.mark.usefixtures("reciting_duo")
def test_the_program_prints_and_appends_its_table(
    llama_server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    results = tmp_path / "RESULTS.md"
    flags = ["--clients", "1,3", "--prompts", "2", "--rounds", "2", "--max-tokens", "20"]
    flags += ["--llama-server", str(llama_server), "--duo-flags=--leaves 1", "--duo-flags=--leaves 3"]
    assert compare.main([*flags, "--append", str(results)]) == 0
    text = results.read_text()
    assert text.strip() in capsys.readouterr().out
    leads = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| 3 |")]
    assert leads == ["llama-server", "duo", "duo, drafts --leaves 1", "duo, drafts --leaves 3"]
    assert text.count("| 84 of 120 (70 %) | 12 of 12 |") == 4  # 2 rounds of 3 clients with 2 prompts each
    assert str(tmp_path) not in text


def test_repeated_prompt_has_new_salt():
    n = len(load())
    asked = list(itertools.islice(endless(), 2 * n))
    assert [prompt.id for prompt in asked[:n]] == [prompt.id for prompt in asked[n:]]
    assert len({(prompt.id, prompt.salt) for prompt in asked}) == 2 * n


def commands(*flags: str) -> dict[str, str]:
    """Return the arguments of each command.

    The model is a file without a prediction block.
    """
    args = compare._parser().parse_args(["--model", str(BUNDLED_MODEL), "--clients", "2,4,1", *flags])  # pyright: ignore[reportPrivateUsage]
    return {command.name: " ".join(command.arguments) for command in compare.commands(args)}


def test_leads_share_slot_count():
    found = commands("--duo-flags", "--draft-mode async")
    assert list(found) == ["duo", "duo, drafts"]
    assert all(f"--model {BUNDLED_MODEL}" in line and "--parallel 4" in line for line in found.values())
    assert "--draft-max 0" in found["duo"]
    assert " server up " in found["duo, drafts"]
    assert "--draft-mode async" in found["duo, drafts"]


def test_duo_flags_make_servers():
    found = commands("--llama-server", "l", "--duo-flags=--draft-max 4", "--duo-flags=--texts /a/b.txt")
    drafting = ["duo, drafts --draft-max 4", "duo, drafts --texts b.txt"]
    assert list(found) == ["llama-server", "duo", *drafting]
    assert found["llama-server"].startswith(f"l --model {BUNDLED_MODEL}")
    assert "--parallel 4" in found["llama-server"]
    assert "--texts /a/b.txt" in found[drafting[1]]


@pytest.mark.model
@pytest.mark.redis
def test_the_real_leads_serve_clients_at_once(capsys: pytest.CaptureFixture[str]):
    flags = ["--threads", "1", "--clients", "2", "--prompts", "1"]
    flags += ["--max-tokens", "24", "--duo-flags", "--draft-mode async --no-gate"]
    assert compare.main(flags) == 0
    out = capsys.readouterr().out
    rows = {line.split(" | ")[1]: line.split(" | ") for line in out.splitlines() if line.startswith("| 2 |")}
    assert "Draft mode: async" in out
    assert float(rows["duo"][2]) > 0
    assert float(rows["duo, drafts"][3]) > 0
    assert rows["duo"][10] == "-"
    assert " of " in rows["duo, drafts"][10]
