"""Python's share of a step: what the prepared session does is what it says, and the program's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import overhead, prepared, timing
from benchmarks.overhead import ALL, DRAFTED_US, PLAIN_US, Bench, Guesses
from benchmarks.timing import WAYS, Case, Cost
from server.engine.proposer import Ask

SMALL = prepared.make_rows(300, peaked=True)
DRAFTED = [guesses for guesses in ALL if guesses.by]


@pytest.mark.parametrize("guesses", ALL, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_what_the_script_says_whatever_is_guessed(guesses: Guesses, way: str):
    bench = Bench(SMALL, guesses, WAYS[way], n_steps=20)
    for _ in range(20):
        assert bench.work() > 0.0
    script = prepared.Script(SMALL, WAYS[way])
    truths = [script.truth(prepared.N_PROMPT + i) for i in range(bench.n_committed)]
    assert bench.tokens == truths


@pytest.mark.parametrize("guesses", DRAFTED, ids=str)
def test_steps_verify_as_many_guesses_as_they_may_and_most_are_right(guesses: Guesses):
    cost = timing.measure(Bench(SMALL, guesses, WAYS["temperature 1"], 150), 150)
    assert cost.n_guesses == pytest.approx(prepared.DEPTH, abs=0.5)
    assert cost.n_committed == pytest.approx((1 - 0.8**9) / (1 - 0.8), rel=0.25)  # of a chain
    assert 0.0 < cost.us_fastest <= cost.us


def test_without_guesses_a_step_is_a_token():
    cost = timing.measure(Bench(SMALL, Guesses("none"), WAYS["temperature 0"], 10), 10)
    assert (cost.n_guesses, cost.n_committed) == (0.0, 1.0)


def test_trees_have_alternatives_and_their_guesses_are_siblings():
    script = prepared.Script(SMALL, WAYS["temperature 0"])
    proposer = prepared.ScriptedProposer(script, leaves=3)
    proposer.prepare()
    (tree,) = proposer.propose([Ask(1, prepared.DEPTH)], 1, 0).proposals
    assert tree.parents == (-1, 0, 1, 2, 3, 4, -1, 0)
    assert len(set(tree.parents) ^ set(range(8))) == 4  # three leaves, and the root
    for i in range(200):
        assert script.instead(i + 1) != script.guess(i + 1)
        assert script.truth(i + 1) in (script.instead(i + 1), script.guess(i + 1))


def test_decodes_do_not_count_and_last_as_long_as_a_models():
    bench = Bench(SMALL, Guesses("none"), WAYS["temperature 0"], n_steps=5)
    before = bench.watch()
    spent_s = sum(bench.work() for _ in range(5))
    elapsed_s = bench.watch() - before
    assert elapsed_s >= 5 * prepared.DECODE_S + spent_s


def test_a_profile_names_the_servers_functions_and_not_decode():
    bench = Bench(SMALL, Guesses("tree", "drafter"), WAYS["temperature 1"], 20)
    lines = timing.profiled(overhead.SUBJECT, bench, 20).splitlines()
    assert len(lines) == 2 + timing.TOP
    shares = [float(line.split(" | ")[1]) for line in lines[2:]]
    assert shares == sorted(shares, reverse=True)
    assert any("sampling/" in line for line in lines)
    assert not any("prepared.py" in line or "overhead.py" in line for line in lines)


def test_the_table_marks_what_is_over_its_bound():
    over = {
        ("none", "defaults"): Cost(PLAIN_US + 1, 1.0, 1.0, 0.0, 1.0),
        ("tree by script", "defaults"): Cost(PLAIN_US + 1, 1.0, 1.0, 8.0, 4.0),
        ("tree by script", "temperature 1"): Cost(DRAFTED_US + 1, 1.0, 1.0, 8.0, 4.0),
        ("none, lookup", "defaults"): Cost(PLAIN_US + 1, 1.0, 1.0, 2.0, 2.0),
    }
    costs = {Case(what, way, "4k peaked"): cost for (what, way), cost in over.items()}
    lines = timing.table(overhead.SUBJECT, costs).splitlines()
    assert lines[0].endswith("| 4k peaked |")
    assert lines[2] == "| none | defaults | 0.0 | 1.0 | **151** |"
    assert lines[3] == "| tree by script | defaults | 8.0 | 4.0 | 151 |"
    assert lines[4].endswith("| **401** |")
    assert lines[5].endswith("| **151** |")


def test_every_case_has_a_name_by_which_it_is_chosen():
    names = [str(case) for case in overhead.cases([4_000, 150_000])]
    assert len(set(names)) == len(ALL) * len(WAYS) * 4
    assert "tree by script; defaults; 4k flat" in names


def test_the_program_prints_table_and_profile_and_appends(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = tmp_path / "RESULTS.md"
    flags = ["--vocabularies", "1000", "--steps", "5", "--only", "none; temperature 0", "--profile"]
    assert overhead.main([*flags, "--append", str(results)]) == 0
    text = results.read_text()
    assert text.strip() in capsys.readouterr().out
    assert "| none | temperature 0 | 0.0 | 1.0 |" in text
    assert text.count("own µs a step") == 2
    assert "engine/engine.py" in text


def test_nothing_to_measure_is_an_error(capsys: pytest.CaptureFixture[str]):
    assert overhead.main(["--only", "nobody"]) == 1
    assert "nothing to measure" in capsys.readouterr().err
