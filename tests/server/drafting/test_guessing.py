"""One guess from one row: which token, how sure, and what else; and which rule of guessing is better."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from server.drafting.guessing import CERTAIN_CONFIDENCE, NextToken, Rule
from server.sampling.draft_token import DraftGuess
from server.sampling.draw import Row, draw
from server.sampling.noise import gumbel
from server.sampling.params import SamplingParams
from tests.support import probability

GREEDY = SamplingParams(0.0)
PLAIN = SamplingParams(1.0, 0, 1.0, 0.0, 7)
USUAL = SamplingParams(0.8, 40, 0.95, 0.05, 7)


def row_of(seed: int, size: int = 500, sharpness: float = 2.0) -> Row:
    return np.random.default_rng(seed).normal(0.0, sharpness, size).astype(np.float32)


def noisy_order(row: Row, sampling: SamplingParams, position: int) -> list[int]:
    ids = np.arange(len(row))
    scores = row / sampling.temperature + gumbel(sampling.seed, position, ids)
    return [int(i) for i in np.argsort(-scores)]


@pytest.mark.parametrize("seed", range(10))
def test_greedy_guesses_two_largest_logits(seed: int):
    row = row_of(seed)
    first, second = np.argsort(-row)[:2]
    guessed = NextToken(row, GREEDY, 5, likeliest=False).guess(second=True)
    assert (guessed.token, guessed.second) == (first, second)
    assert guessed.confidence == pytest.approx(probability(row, int(first)))
    assert guessed.second_confidence == pytest.approx(probability(row, int(second)), rel=1e-5)


@pytest.mark.parametrize("n_vocab", [32_000, 150_001])
def test_confidence_nears_probability(n_vocab: int):
    chance = np.random.default_rng(2)
    for steepness in (1.5, 2.0, 3.0, 6.0):
        logits = -steepness * np.log(np.arange(1, n_vocab + 1))
        row = chance.permutation(logits).astype(np.float32)
        first, second = np.argsort(-row)[:2]
        guessed = NextToken(row, GREEDY, 5, likeliest=False).guess(second=True)
        assert guessed.token == first
        assert guessed.confidence == pytest.approx(probability(row, int(first)), rel=0.05)
        if guessed.confidence < CERTAIN_CONFIDENCE:
            assert guessed.second == second
            assert guessed.second_confidence == pytest.approx(probability(row, int(second)), rel=0.05)


@pytest.mark.parametrize("likeliest", [False, True])
def test_certain_draw_ignores_noise(likeliest: bool):
    row = row_of(4)
    only = SamplingParams(1.0, 1, 1.0, 0.0, 7)
    guessed = NextToken(row, only, 5, likeliest=likeliest).guess(second=True)
    assert guessed == NextToken(row, GREEDY, 5, likeliest=False).guess(second=True)


@pytest.mark.parametrize("seed", range(10))
def test_noise_picks_two_best_scores(seed: int):
    row = row_of(seed)
    guessed = NextToken(row, PLAIN, seed, likeliest=False).guess(second=True)
    first, second = noisy_order(row, PLAIN, seed)[:2]
    assert (guessed.token, guessed.second) == (
        first,
        second if guessed.confidence < CERTAIN_CONFIDENCE else None,
    )
    assert guessed.drawn == draw(row, PLAIN, seed)
    assert guessed.likeliest == int(row.argmax())
    assert guessed.second is None or 0.0 < guessed.second_confidence <= guessed.confidence < 1.0


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "plain"])
@pytest.mark.parametrize("seed", range(10))
def test_the_third_guess_is_the_next_best(seed: int, sampling: SamplingParams):
    row = row_of(seed)
    guessed = NextToken(row, sampling, seed, likeliest=False).guess(second=True)
    if guessed.second is None:
        assert (guessed.third, guessed.confidence >= CERTAIN_CONFIDENCE) == (None, True)
        return
    ranked = np.argsort(-row) if sampling is GREEDY else noisy_order(row, sampling, seed)
    assert guessed.third == ranked[2]
    assert 0.0 <= guessed.third_confidence <= guessed.second_confidence
    assert guessed.confidence + guessed.second_confidence + guessed.third_confidence <= 1.0 + 1e-9


@pytest.mark.parametrize("sampling", [PLAIN, USUAL], ids=["plain", "usual"])
@pytest.mark.parametrize("seed", range(10))
def test_guess_mirrors_the_draw(seed: int, sampling: SamplingParams):
    row = row_of(seed, 40_000, 1.0)
    guessed = NextToken(row, sampling, seed, likeliest=False).guess(second=True)
    assert guessed.token == draw(row, sampling, seed) != guessed.second
    if guessed.second is not None:
        assert row[guessed.second] >= row.max() + math.log(max(sampling.min_p, 1e-9))


def test_likeliest_keeps_draw_as_second():
    seeds = [s for s in range(30) if draw(row_of(s), PLAIN, s) != row_of(s).argmax()]
    assert seeds
    for seed in seeds:
        guessed = NextToken(row_of(seed), PLAIN, seed, likeliest=True).guess(second=True)
        assert (guessed.token, guessed.second) == (guessed.likeliest, guessed.drawn)


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "plain"])
def test_a_sure_guess_has_no_second(sampling: SamplingParams):
    row = row_of(1)
    row[3] = 60.0
    guessed = NextToken(row, sampling, 0, likeliest=False).guess(second=True)
    assert guessed.token == 3
    assert guessed.confidence > CERTAIN_CONFIDENCE
    assert guessed.second is None


def test_no_second_guess_where_none_is_wanted():
    assert NextToken(row_of(1), PLAIN, 0, likeliest=False).guess(second=False).second is None


def test_shared_noise_sharpens_confidence():
    """Compare by log loss whether another model with slightly other logits draws the same."""
    chance = np.random.default_rng(3)
    said, plain, right = list[float](), list[float](), list[bool]()
    for position in range(2000):
        row = row_of(position, 200, 1.5)
        other = (row + chance.normal(0.0, 0.7, len(row))).astype(np.float32)
        guessed = NextToken(row, PLAIN, position, likeliest=False).guess(second=False)
        said.append(guessed.confidence)
        plain.append(probability(row, guessed.token))
        right.append(guessed.token == draw(other, PLAIN, position))

    def loss(confidences: list[float]) -> float:
        clipped = np.clip(confidences, 0.02, 0.98)
        return float(-np.log(np.where(right, clipped, 1.0 - clipped)).mean())

    assert loss(said) < loss(plain) - 0.1


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "plain"])
def test_nonsense_is_not_trusted(sampling: SamplingParams):
    row = np.full(50, math.nan, np.float32)
    guessed = NextToken(row, sampling, 0, likeliest=False).guess(second=True)
    assert (guessed.confidence, guessed.second) == (0.0, None)


# -- the rule


def judged(noise: float, likeliest: float, n: int = 2000, seed: int = 1) -> list[bool]:
    """Return which rule is taken at n positions where the two tokens are right at these rates."""
    chance, rule, taken = random.Random(seed), Rule(), list[bool]()
    for _ in range(n):
        at = chance.random()
        rule.judge(
            DraftGuess(1, 0.5, drawn=1, likeliest=2), 1 if at < noise else 2 if at < noise + likeliest else 3
        )
        taken.append(rule.likeliest)
    return taken


def test_better_rule_is_taken():
    assert not any(judged(0.6, 0.2))
    assert all(judged(0.2, 0.6)[200:])


def test_equal_rules_do_not_waver():
    taken = judged(0.4, 0.4)
    assert sum(a != b for a, b in pairwise(taken)) < 20


def test_rule_changes_with_evidence():
    rule = Rule()
    for _ in range(100):
        rule.judge(DraftGuess(1, 0.5, drawn=1, likeliest=2), 2)
    assert rule.likeliest
    for _ in range(200):
        rule.judge(DraftGuess(2, 0.5, drawn=1, likeliest=2), 1)
    assert not rule.likeliest


def test_agreement_decides_nothing_but_counts():
    rule = Rule()
    for token in (1, 1, 2):
        rule.judge(DraftGuess(1, 0.5, drawn=1, likeliest=1), token)
    assert (rule.n_judged, rule.likeliest) == (3, False)
