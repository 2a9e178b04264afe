"""Python's share: what the sessions without a model do is what they say, and the program's tables."""

from __future__ import annotations

import gc
import statistics
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import overhead, prepared
from benchmarks.bytecodes import BytecodeWatch
from benchmarks.overhead import (
    DRAFT_US,
    DRAFTED_US,
    GUESSES,
    MICROSECONDS,
    N_PROMPT,
    PLAIN_US,
    SHAPES,
    WAYS,
    WHAT,
    Case,
    SteppedLead,
    Work,
    drafts,
    steps,
    turns,
)
from benchmarks.prepared import RIGHT_RUN, Watch, say
from server.sampling.draw import softmax

SMALL = prepared.make_rows(300, "peaked")
FALLING = prepared.make_rows(300, "falling")
SECOND = ("tree by block",)  # second guesses of the block are among those of a step, so it is less deep
DRAFTED = [what for what, guesses in GUESSES.items() if guesses.by and what not in SECOND]


@pytest.mark.parametrize("what", GUESSES)
@pytest.mark.parametrize("way", WAYS)
def test_text_follows_the_script(what: str, way: str):
    lead = SteppedLead(SMALL, what, WAYS[way], 20)
    for _ in range(20):
        spent_s, _ = lead.step()
        assert spent_s > 0.0
    script = prepared.Script(SMALL, WAYS[way])
    assert lead.tokens == [script.truth(N_PROMPT + i) for i in range(len(lead.tokens))]


@pytest.mark.parametrize("what", DRAFTED)
def test_steps_verify_mostly_right_guesses(what: str):
    work = steps(SMALL, what, WAYS["temperature 1"], 150, Watch())
    assert work.n_guesses == pytest.approx(prepared.DEPTH, abs=0.5)
    assert work.n_committed == pytest.approx((1 - 0.8**9) / (1 - 0.8), rel=0.25)  # of a chain
    assert len(work.spent) == 150


def test_without_guesses_a_step_is_a_token():
    work = steps(SMALL, "none", WAYS["temperature 0"], 10, Watch())
    assert (work.n_guesses, work.n_committed) == (0.0, 1.0)


def test_second_guess_follows_wrong_first():
    script = prepared.Script(SMALL, WAYS["temperature 0"])
    for i in range(1, 200):
        assert script.instead(i) != script.guess(i)
        assert script.truth(i) in (script.instead(i), script.guess(i))


def test_decodes_last_without_counting():
    lead = SteppedLead(SMALL, "none", WAYS["temperature 0"], 5)
    before = lead.watch()
    spent_s = sum(lead.step()[0] for _ in range(5))
    assert lead.watch() - before >= 5 * prepared.DECODE_S + spent_s


# On average in a step, with Python 3.11, and up to a fifth more: a feature that costs more has to say so.
BUDGETS = {"none": 2_400, "none, lookup": 11_000, "chain by lead": 24_000, "chain by drafter": 13_000}


@pytest.mark.parametrize("what", BUDGETS)
def test_step_keeps_its_bytecode_budget(what: str):
    first, second = (steps(SMALL, what, WAYS["temperature 0"], 200, BytecodeWatch()) for _ in range(2))
    assert first == second
    assert 0.6 * BUDGETS[what] < statistics.mean(first.spent) <= BUDGETS[what]


@pytest.mark.parametrize("what", WHAT["draft"])
def test_drafts_dominate_a_steps_bytecodes(what: str):
    drafted, step = (run(SMALL, what, WAYS["temperature 0"], 60, BytecodeWatch()) for run in (drafts, steps))
    assert 0.5 * step.median < prepared.DEPTH * drafted.median < 0.9 * step.median


def test_counting_collects_no_garbage():
    class Garbage:
        def __init__(self) -> None:
            self.cycle = self

    def work() -> None:
        began.append(len(collections))
        for _ in range(100):
            Garbage()
        began.append(len(collections))

    def called(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    collections, began = list[str](), list[int]()
    thresholds, collects = gc.get_threshold(), gc.isenabled()
    gc.callbacks.append(called)
    gc.set_threshold(10)
    gc.enable()  # a command that ran in this process may have switched it off
    try:
        BytecodeWatch().outside(work)
        work()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(called)
        if not collects:
            gc.disable()
    assert began[0] == began[1]
    assert began[2] < began[3]


@pytest.mark.parametrize("what", SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_turn_makes_mostly_right_guesses(what: str, way: str):
    work = turns(FALLING, what, WAYS[way], 200, Watch())
    assert len(work.spent) == 200
    assert min(work.spent) > 0.0
    assert work.n_committed > 1 / 5
    assert work.n_guesses == 1.0 if what == "path" else work.n_guesses > 1.1


@pytest.mark.parametrize("way", WAYS)
def test_text_follows_the_drafters_draws(way: str):
    text = say(FALLING, WAYS[way], 300)
    script = prepared.Script(FALLING, WAYS[way])
    drawn = [script.truth(position) for position in range(N_PROMPT, N_PROMPT + 300)]
    wrong = [i for i, (a, b) in enumerate(zip(text.tokens[N_PROMPT:], drawn, strict=True)) if a != b]
    assert {b - a for a, b in pairwise(wrong)} == {RIGHT_RUN}
    first = N_PROMPT + wrong[0]
    assert text.tokens[first] in np.argsort(FALLING[prepared.row_after(first - 1)])[-2:]


def test_falling_rows_are_mostly_sure():
    rows = prepared.make_rows(4_096, "falling")
    sure = sorted(float(softmax(row)[row.argmax()]) for row in rows)
    assert sure[0] == pytest.approx(0.6, abs=0.02)
    assert sure[-1] > 0.99
    near = [int(np.count_nonzero(row >= row.max() - 12.0)) for row in rows]
    assert (min(near), max(near)) == (4, 403)


def test_tables_mark_medians_over_bounds():
    def work(us: float, n_guesses: float, n_committed: float) -> Work:
        return Work([0.0, us / 1e6, 1.0], n_guesses, n_committed)

    step, draft, turn = overhead.tables(
        {
            Case("step", "none", "defaults", "4k peaked"): work(PLAIN_US + 1, 0.0, 1.0),
            Case("step", "tree by drafter", "defaults", "4k peaked"): work(PLAIN_US + 1, 8.0, 4.0),
            Case("step", "tree by drafter", "temperature 1", "4k peaked"): work(DRAFTED_US + 1, 8.0, 4.0),
            Case("step", "none, lookup", "defaults", "4k peaked"): work(PLAIN_US + 1, 2.0, 2.0),
            Case("draft", "tree by block", "temperature 0", "4k peaked"): work(DRAFT_US + 1, 1.0, 0.5),
            Case("draft", "tree by block", "temperature 1", "4k peaked"): work(DRAFT_US + 1, 1.0, 0.5),
            Case("turn", "tree", "defaults", "4k falling"): work(DRAFTED_US + 1, 3.0, 0.5),
        },
        MICROSECONDS,
    )
    lines = step.splitlines()
    assert lines[0] == "| guesses | sampling | guesses a step | tokens a step | 4k peaked |"
    assert lines[2] == "| none | defaults | 0.0 | 1.0 | **151** |"
    assert lines[3] == "| tree by drafter | defaults | 8.0 | 4.0 | 151 |"
    assert lines[4].endswith("| **401** |")
    assert lines[5].endswith("| **151** |")
    assert draft.splitlines()[2:] == [
        "| tree by block | temperature 0 | 1.0 | 0.5 | **61** |",
        "| tree by block | temperature 1 | 1.0 | 0.5 | 61 |",
    ]
    assert turn.splitlines()[2] == "| tree | defaults | 3.0 | 0.5 | 401 |"


def test_every_case_has_a_name():
    names = [str(case) for case in overhead.cases([4, 150])]
    shapes = {"step": 4, "draft": 4, "turn": 2}  # of rows, with both vocabularies
    n_cases = len(WAYS) * sum(len(WHAT[unit]) * n for unit, n in shapes.items())
    assert len(set(names)) == len(names) == n_cases
    assert "step, tree by drafter; defaults; 4k flat" in names


def test_the_program_prints_its_tables_and_appends(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = tmp_path / "RESULTS.md"
    flags = ["--vocabularies", "1", "--n", "5", "--append", str(results)]
    assert overhead.main([*flags, "--only", "none; temperature 0"]) == 0
    assert overhead.main([*flags, "--only", "path; temperature 0"]) == 0
    assert overhead.main([*flags, "--only", "none; temperature 0", "--bytecodes"]) == 0
    text = results.read_text()
    assert "Bytecodes outside decode" in text
    assert text.split("## ")[-1].strip() in capsys.readouterr().out
    assert "| none | temperature 0 | 0.0 | 1.0 |" in text
    assert "| path | temperature 0 | 1.0 |" in text


def test_nothing_to_measure_is_an_error(capsys: pytest.CaptureFixture[str]):
    assert overhead.main(["--only", "nobody"]) == 1
    assert "nothing to measure" in capsys.readouterr().err
