"""Acceptance by rule: on texts of the toy whose acceptance is known, on made-up rows, and the program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks import temperature
from benchmarks.temperature import (
    CHOSEN,
    GREEDY,
    INDEPENDENT,
    OPTIMUM,
    SHARED,
    WAYS,
    Score,
    score,
    write,
)
from server.sampling.draw import Row, distribution, draw
from server.sampling.params import SamplingParams
from tests.fake_backend import FakeBackend, FakeModel

PROMPTS = [tuple(b"Once upon a time"), tuple(b"It was a dark and stormy night" * 4), tuple(b"x")]
ONE = WAYS["temperature 1"]


@dataclass(frozen=True, slots=True)
class Pair:
    """The target's logits are normal with standard deviation `spread`; the draft's are `factor` times the
    target's plus normal errors of standard deviation `error`."""

    spread: float
    error: float
    factor: float = 1.0


def score_pair(pair: Pair, n_vocab: int, n_positions: int) -> tuple[Score, float]:
    """And the mean of the target's largest probabilities. Pure and deterministic."""
    rng = np.random.default_rng(0)
    params = WAYS["temperature 1"].reseeded(1)
    result, largest = Score(), 0.0
    for position in range(n_positions):
        target = (pair.spread * rng.standard_normal(n_vocab)).astype(np.float32)
        draft = (pair.factor * (target + pair.error * rng.standard_normal(n_vocab))).astype(np.float32)
        largest += float(distribution(target, params).probabilities.max()) / n_positions
        result.add(draw(target, params, position), (target, draft), params, position)
    return result, largest


def toy(error: float = 0.0) -> FakeBackend:
    return FakeBackend(FakeModel(error=error, eog_rate=0.0), n_seqs=2)


def rows(p: list[float], q: list[float]) -> tuple[Row, Row]:
    return np.log(np.array(p, np.float32)), np.log(np.array(q, np.float32))


@pytest.mark.parametrize("way", WAYS)
def test_a_draft_that_is_the_target_is_always_right_with_the_same_noise(way: str):
    target = toy()
    result = score(target, toy(), write(target, PROMPTS, WAYS[way], 50))
    assert result.n == 150
    assert result.share(SHARED) == result.share(CHOSEN) == 1.0
    assert result.share(OPTIMUM) == pytest.approx(1.0)


def test_a_draft_that_errs_in_a_fifth_of_contexts_is_right_in_the_others():
    target = toy()
    result = score(target, toy(0.2), write(target, PROMPTS, WAYS["temperature 0"], 200))
    shares = {result.share(rule) for rule in (GREEDY, SHARED, CHOSEN, INDEPENDENT, OPTIMUM)}
    assert len(shares) == 1
    assert shares.pop() == pytest.approx(0.8, abs=0.07)  # 600 contexts; some errors guess the same


def test_texts_are_those_of_the_parameters_and_leave_the_cache_empty():
    target = toy()
    drawn = write(target, PROMPTS, ONE, 30)
    assert [text.tokens[: text.n_prompt] for text in drawn] == PROMPTS
    assert {len(text.tokens) - text.n_prompt for text in drawn} == {30}
    assert [text.sampling.seed for text in drawn] == [1, 2, 3]
    assert target.n_used == 0
    assert write(target, PROMPTS, ONE, 30) == drawn
    text = drawn[1]  # longer than one batch
    for position, row in enumerate(temperature.rows_of(target, text), start=text.n_prompt):
        assert draw(row, text.sampling, position) == text.tokens[position]
    assert target.n_used == 0


def test_probabilities_of_the_rules_that_do_not_share_noise():
    result = Score()
    result.add(0, rows([0.5, 0.3, 0.2], [0.1, 0.3, 0.6]), ONE, position=5)
    assert result.share(INDEPENDENT) == pytest.approx(0.05 + 0.09 + 0.12)
    assert result.share(OPTIMUM) == pytest.approx(0.1 + 0.3 + 0.2)
    assert result.share(GREEDY) == 0.0


def test_what_a_filter_leaves_out_is_never_equal():
    result = Score()
    kept = SamplingParams(1.0, top_k=2, top_p=1.0, min_p=0.0)
    result.add(0, rows([0.6, 0.3, 0.1], [0.2, 0.1, 0.7]), kept, position=5)
    assert result.share(INDEPENDENT) == pytest.approx((2 / 3) * (2 / 9))
    assert result.share(OPTIMUM) == pytest.approx(2 / 9)


def test_recall_counts_wrong_guesses_only():
    result, greedy = Score(), WAYS["temperature 0"]
    for token in (0, 1, 1, 2, 3):
        result.add(token, rows([0.25] * 4, [0.4, 0.3, 0.2, 0.1]), greedy, position=5)
    assert (result.recall(2), result.recall(3)) == ("2 of 4", "3 of 4")


def test_shared_noise_is_far_above_a_greedy_draft_where_rows_are_flat():
    result, largest = score_pair(Pair(spread=2.0, error=0.25), 500, 300)
    assert largest < 0.2
    assert result.share(SHARED) > 0.7
    assert result.share(GREEDY) < 0.2
    assert result.share(CHOSEN) == result.share(SHARED)
    assert result.share(SHARED) < result.share(OPTIMUM) + 0.05
    assert result.takes == SHARED


def test_the_drafter_changes_to_the_largest_logit_where_that_is_better():
    result, _ = score_pair(Pair(spread=8.0, error=1.0, factor=0.25), 500, 400)
    assert result.share(GREEDY) > result.share(SHARED) + 0.2
    assert result.share(CHOSEN) > result.share(SHARED) + 0.15
    assert result.takes == GREEDY


@pytest.mark.model
def test_the_program_prints_and_appends_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = tmp_path / "RESULTS.md"
    flags = ["--prompts", "2", "--max-tokens", "12"]
    assert temperature.main([*flags, "--threads", "1", "--append", str(results)]) == 0
    text = results.read_text()
    assert text.strip() in capsys.readouterr().out
    table = {line.split(" | ")[0]: line.split(" | ") for line in text.splitlines() if line.startswith("| ")}
    assert len(table["| largest logit"]) == 1 + len(WAYS)
    assert 0.3 < float(table["| largest logit"][1]) <= 1.0
    assert table["| shared noise"][1] == table["| largest logit"][1]  # temperature 0
    assert str(tmp_path) not in text


def test_a_missing_model_is_told_in_one_line(capsys: pytest.CaptureFixture[str]):
    assert temperature.main(["--model", "missing.gguf"]) == 1
    assert capsys.readouterr().err.startswith("temperature: no model file at missing.gguf")
