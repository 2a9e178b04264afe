"""Python's share of a guess: the prepared lead commits what the program says, and the program's table."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import drafting, prepared, timing
from benchmarks.drafting import PER_COMMIT, READY, SHAPES, Bench, Lead
from benchmarks.prepared import N_PROMPT
from benchmarks.timing import WAYS, Case, Cost
from drafters.draft_session import DraftSession
from server.sampling.draft_token import DraftGuess
from server.sampling.draw import softmax
from server.sampling.params import SamplingParams

SMALL = drafting.make_rows(300)
GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_most_guesses_are_right_and_a_turn_is_at_least_one(shape: str, way: str):
    bench = Bench(SMALL, shape, WAYS[way], n_turns=300)
    n_drafted, n_committed = bench.n_guesses, bench.n_committed
    for _ in range(300):
        assert bench.work() > 0.0
    n_drafted, n_committed = bench.n_guesses - n_drafted, bench.n_committed - n_committed
    assert n_drafted == 300 if shape == "path" else n_drafted >= 300
    assert n_committed > 300 / 5


def test_branches_are_drafted_where_rows_are_cheap():
    costs = {s: timing.measure(Bench(SMALL, s, WAYS["temperature 1"], 300), 300) for s in SHAPES}
    assert costs["path"].n_guesses == 1.0
    assert min(costs["tree"].n_guesses, costs["padded tree"].n_guesses) > 1.1
    assert all(0.0 < cost.us_fastest <= cost.us <= cost.us_slowest for cost in costs.values())


class Answering:
    """A lead, and a session of a drafter that knows what the lead will say."""

    def __init__(self) -> None:
        self.script = prepared.Script(SMALL, GREEDY)
        self.lead = Lead(self.script, 300, GREEDY)
        self.session = DraftSession(self.lead.opening)

    def tell(self, n: int) -> None:
        """That many more right guesses."""
        for _ in range(n):
            self.session.add(DraftGuess(self.script.truth(len(self.session.tokens)), 0.9))

    def commit(self, *, idle: bool = True) -> list[int] | None:
        commit = self.lead.answer(self.session, idle=idle)
        assert commit is None or self.session.commit(commit)
        return list(commit.tokens) if commit else None


def test_the_lead_commits_when_enough_guesses_are_there():
    drafter = Answering()
    drafter.tell(READY - 1)
    assert drafter.commit(idle=False) is None
    drafter.tell(1)
    truths = [drafter.script.truth(N_PROMPT + i) for i in range(PER_COMMIT)]
    assert drafter.commit(idle=False) == truths
    assert drafter.session.n_ahead == READY - PER_COMMIT


def test_it_commits_what_is_there_when_there_will_be_no_more():
    drafter = Answering()
    drafter.tell(2)
    assert len(drafter.commit() or ()) == 2


def test_every_fourth_commit_ends_in_another_guess_than_the_paths():
    drafter, n_right = Answering(), PER_COMMIT // 2
    for _ in range(3):
        drafter.tell(n_right)
        assert len(drafter.commit() or ()) == n_right
    fork = drafter.session.n_committed + n_right
    drafter.tell(n_right)
    drafter.session.add(DraftGuess(drafter.script.truth(fork), 0.5))
    drafter.session.branch(fork, DraftGuess(1000, 0.4))
    truths = [drafter.script.truth(fork - n_right + i) for i in range(n_right)]
    assert drafter.commit() == [*truths, 1000]


def test_rows_are_those_of_a_model_that_is_mostly_sure():
    rows = drafting.make_rows(4_096)
    sure = sorted(float(softmax(row)[row.argmax()]) for row in rows)
    assert sure[0] == pytest.approx(0.6, abs=0.02)
    assert sure[-1] > 0.99
    near = [int(np.count_nonzero(row >= row.max() - 12.0)) for row in rows]
    assert (min(near), max(near)) == (4, 403)


def test_a_profile_names_the_drafters_functions_and_not_decode():
    bench = Bench(SMALL, "tree", WAYS["temperature 1"], 20)
    lines = timing.profiled(drafting.SUBJECT, bench, 20).splitlines()
    assert len(lines) == 2 + timing.TOP
    shares = [float(line.split(" | ")[1]) for line in lines[2:]]
    assert all(a >= b for a, b in pairwise(shares))
    assert any("drafters/model.py" in line for line in lines)
    assert not any("prepared.py" in line or "drafting.py" in line for line in lines)


def test_the_table_has_median_and_tenths():
    costs = {
        Case("path", "defaults", "4096 tokens"): Cost(20.4, 18.0, 31.0, 1.0, 0.5),
        Case("path", "defaults", "150000 tokens"): Cost(50.0, 45.0, 90.0, 1.0, 0.5),
        Case("tree", "defaults", "150000 tokens"): Cost(60.0, 55.0, 95.0, 1.25, 0.5),
    }
    lines = timing.table(drafting.SUBJECT, costs).splitlines()
    assert lines[0].endswith("| 4096 tokens | 150000 tokens |")
    assert lines[2:] == [
        "| path | defaults | 1.0 | 20 (18 to 31) | 50 (45 to 90) |",
        "| tree | defaults | 1.2 | - | 60 (55 to 95) |",
    ]


def test_the_program_prints_table_and_profile_and_appends(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = tmp_path / "RESULTS.md"
    flags = ["--vocabularies", "1000", "--turns", "5", "--only", "path; temperature 0", "--profile"]
    assert drafting.main([*flags, "--append", str(results)]) == 0
    text = results.read_text()
    assert text.strip() in capsys.readouterr().out
    assert "| path | temperature 0 | 1.0 |" in text
    assert text.count("own µs a turn") == 1


def test_nothing_to_measure_is_an_error(capsys: pytest.CaptureFixture[str]):
    assert drafting.main(["--only", "nobody"]) == 1
    assert "nothing to measure" in capsys.readouterr().err
