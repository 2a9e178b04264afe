"""Quiet steps: nobody guesses in them, what a GPU hides does not count, and the program's table."""

from __future__ import annotations

import pytest

from benchmarks import quiet
from benchmarks.bytecodes import BytecodeWatch
from benchmarks.prepared import Watch
from benchmarks.quiet import ASKED, AWAKE, DRAFTERS, LOOKUPS, NOBODY, QuietLead, measure


@pytest.mark.parametrize("awake", AWAKE)
@pytest.mark.parametrize("prompts", [False, True])
def test_steps_rarely_exceed_planned_rows(awake: str, *, prompts: bool):
    lead = QuietLead(awake, 8, Watch(), prompts=prompts)
    rows = [(lead.step(), lead.n_rows)[1] for _ in range(50)]
    plain = 7 + quiet.QUIET_PROMPT_TOKENS if prompts else 8
    assert sum(n == plain for n in rows) >= 45


def test_hidden_time_does_not_count():
    def work() -> None:
        for i in range(1000):
            done.append(i)

    watch, done = BytecodeWatch(), list[int]()
    hidden = watch.outside(lambda: watch.hidden(work))
    assert hidden < 20 < 1000 < watch.outside(work)
    assert len(done) == 2000


def test_waking_sources_cost_bytecodes():
    first, second = (measure(8, 5, BytecodeWatch) for _ in range(2))
    assert first == second
    for column in range(2):
        spent = [first[awake][column] for awake in (NOBODY, ASKED, LOOKUPS, DRAFTERS)]
        assert spent == sorted(spent)
        assert spent[0] > 0


# With Python 3.11, for each session, and up to a fifth more: a feature that costs more has to say so.
BUDGETS = {NOBODY: 1_100, ASKED: 1_350, LOOKUPS: 1_600}


def test_sessions_keep_to_their_budgets_of_bytecodes():
    spent = measure(16, 5, BytecodeWatch)
    for awake, most in BUDGETS.items():
        assert 0.6 * most < spent[awake][0] / 16 <= most


def test_the_program_prints_a_table(capsys: pytest.CaptureFixture[str]):
    assert quiet.main(["--sessions", "4", "--n", "3"]) == 0
    printed = capsys.readouterr().out
    assert "3 steps of 4 sessions" in printed
    assert all(f"| {awake} |" in printed for awake in AWAKE)


def test_too_many_sessions_are_refused(capsys: pytest.CaptureFixture[str]):
    assert quiet.main(["--sessions", "57"]) == 1
    assert "--sessions" in capsys.readouterr().err
