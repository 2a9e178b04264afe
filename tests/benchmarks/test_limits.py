"""What no drafter of a speed can exceed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import compare, limits
from benchmarks.limits import Guess, by_rows, ideal_ms, in_turn_ms

FLAT = by_rows({1: 4.0, 64: 4.0})
RIGHT, WRONG, UNSURE = Guess(True, 0.9), Guess(False, 0.9), Guess(False, 0.3)


def test_a_step_takes_what_the_next_known_width_does():
    step_ms = by_rows({1: 4.0, 4: 5.0, 17: 8.0})
    assert [step_ms(n) for n in (1, 2, 4, 5, 17)] == [4.0, 5.0, 5.0, 8.0, 8.0]


def test_an_ideal_drafter_makes_as_many_tokens_as_it_has_time_for():
    """Four in the time of a step. It has to guess the lead's own tokens, too: after a plain step four tokens
    come in each."""
    reply = [RIGHT] * 103
    assert ideal_ms(reply, FLAT, 1.0) == 4.0 * (1 + math.ceil(101 / 4))


def test_without_right_guesses_every_step_makes_one_token():
    assert ideal_ms([WRONG] * 11, FLAT, 1.0) == 10 * 4.0


def test_after_a_wrong_guess_the_drafter_begins_anew():
    """Four guesses came during the plain step, the second of which is wrong: its place is the target's. The
    next step is plain again."""
    assert ideal_ms([RIGHT, RIGHT, RIGHT, WRONG, RIGHT, RIGHT], FLAT, 1.0) == 4 * 4.0


@pytest.mark.parametrize(
    ("reply", "ms"),
    [
        pytest.param([RIGHT] * 5, 4 * 1.0 + 4.0, id="all in one step"),
        pytest.param([RIGHT, UNSURE, RIGHT, RIGHT], 1.0 + 4.0 + 2.0 + 4.0, id="an unsure guess is not taken"),
        pytest.param([RIGHT, WRONG, RIGHT], 1.0 + 4.0 + 1.0 + 4.0, id="a wrong one costs its time"),
    ],
)
def test_one_after_the_other(reply: list[Guess], ms: float):
    assert in_turn_ms(reply, FLAT, 1.0, most=8, p_min=0.5) == ms


@pytest.mark.model
def test_the_bundled_pair_has_its_limits(capsys: pytest.CaptureFixture[str]):
    flags = ["--steps", "1:4.7,4:6.5,17:6.7", "--guess-ms", "1.1", "--prompts", "4", "--max-tokens", "40"]
    assert limits.main([*flags, "--threads", "1"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    by_name = {row[0].strip("| "): float(row[3].strip("| ")) for row in rows[1:] if "---" not in row[0]}
    assert by_name["plain"] == 1.0
    assert by_name["ideal drafter"] >= by_name["one after the other, 8, p_min 0.5"] > 1.0
    assert by_name["S_lim"] > 1.0


@pytest.mark.parametrize("steps", ["4:6.5", "1:x", "1"])
def test_steps_without_those_of_one_row_are_refused(steps: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        limits.main(["--steps", steps, "--guess-ms", "1"])
    assert "--steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        ({"steady_ms": {"1": 4.7, "4": 6.5}, "step_ms": {"1": 9.0}}, "1:4.70,4:6.50"),
        ({"steady_ms": {}, "step_ms": {"1": 9.0}}, "1:9.00"),
    ],
)
def test_compare_prints_what_it_takes(gate: dict[str, Any], told: str):
    health: dict[str, Any] = {"gate": gate, "drafters": [{"guess_ms": 1.13}]}
    alone: dict[str, Any] = {"gate": gate, "drafters": []}
    servers = [
        SimpleNamespace(name="duo, drafts", health=lambda: health),
        SimpleNamespace(name="duo", health=lambda: alone),
        SimpleNamespace(name="llama-server", health=dict),
    ]
    [line] = compare._paces(cast(Any, servers))  # pyright: ignore[reportPrivateUsage]
    assert line == f"duo, drafts: --steps {told} (ms by rows) --guess-ms 1.13."
