"""Draws: exact samples of the filtered softmax, the same for whoever holds the seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from server.sampling import race
from server.sampling.draw import distribution, draw
from server.sampling.noise import (
    RARITY,
    TAIL_MIN,
    Noise,
    gumbel,
    lower_noise,
    lower_noise_few,
    uniform,
    upper_tail,
)
from server.sampling.params import SamplingParams
from tests.server.sampling.chi_square import UNLIKELY, deviation
from tests.support import probability

Row = npt.NDArray[np.float32]
N = 6_000


def row_of(seed: int, n: int, scale: float) -> Row:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


def reference(row: Row, params: SamplingParams) -> npt.NDArray[np.float64]:
    """Return the distribution of llama.cpp's chain: top_k, top_p, min_p, then temperature."""
    logits = row.astype(np.float64)
    order = np.argsort(-logits)
    if params.top_k:
        order = order[: params.top_k]
    p = np.exp(logits[order] - logits[order[0]])
    p /= p.sum()
    n_nucleus = int(np.searchsorted(np.cumsum(p), params.top_p)) + 1 if params.top_p < 1 else len(p)
    order, p = order[:n_nucleus], p[:n_nucleus]
    order = order[p >= params.min_p * p[0]]
    weights = np.zeros(len(row))
    weights[order] = np.exp((logits[order] - logits[order[0]]) / params.temperature)
    return weights / weights.sum()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1.0, 0, 1.0, 0.0, 1),
        SamplingParams(0.5, 0, 1.0, 0.0, 2),
        SamplingParams(1.5, 5, 1.0, 0.0, 3),
        SamplingParams(1.0, 0, 0.7, 0.0, 4),
        SamplingParams(1.0, 0, 1.0, 0.1, 5),
        SamplingParams(0.8, 40, 0.95, 0.05, 6),
        SamplingParams(2.0, 8, 0.9, 0.02, 2**64 - 1),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("n_vocab", "scale"), [(12, 1.5), (300, 2.0), (5000, 6.0)])
def test_draws_follow_the_filtered_softmax(params: SamplingParams, n_vocab: int, scale: float):
    row = row_of(n_vocab, n_vocab, scale)
    expected = reference(row, params)
    counts = np.bincount([draw(row, params, i) for i in range(N)], minlength=n_vocab)
    assert not counts[expected == 0].any()
    likely = expected * N >= 10
    pooled_expected = np.append(expected[likely], expected[~likely].sum()) * N
    pooled_counts = np.append(counts[likely], counts[~likely].sum())
    inside = pooled_expected > 0
    chi2 = float((((pooled_counts - pooled_expected) ** 2)[inside] / pooled_expected[inside]).sum())
    degrees = int(inside.sum()) - 1
    assert chi2 < degrees + 5 * (2 * max(degrees, 1)) ** 0.5 + 5


@pytest.mark.parametrize("params", [SamplingParams(0.0), SamplingParams(1.0, top_k=1)])
def test_greedy_takes_lowest_equal_id(params: SamplingParams):
    row = np.array([0.0, 3.0, 1.0, 3.0], dtype=np.float32)
    assert {draw(row, params, i) for i in range(20)} == {1}


def test_draw_depends_on_seed_and_position():
    row = row_of(0, 500, 1.0)
    params = SamplingParams(1.0, 0, 1.0, 0.0, 11)
    draws = [draw(row, params, i) for i in range(50)]
    assert [draw(row.copy(), params, i) for i in reversed(range(50))] == draws[::-1]
    assert len(set(draws)) > 20
    other = SamplingParams(1.0, 0, 1.0, 0.0, 12)
    assert [draw(row, other, i) for i in range(50)] != draws


@pytest.mark.parametrize("n_vocab", [300, 5000])
def test_dropping_tokens_that_cannot_win_changes_nothing(n_vocab: int):
    row = row_of(3, n_vocab, 5.0)
    params = SamplingParams(1.3, 0, 1.0, 0.0, 5)
    every = np.arange(n_vocab)
    for position in range(300):
        scores = row.astype(np.float64) / params.temperature + gumbel(params.seed, position, every)
        assert draw(row, params, position) == int(scores.argmax())


def test_noise_is_standard_gumbel():
    noise = gumbel(7, 3, np.arange(200_000))
    quantiles = np.exp(-np.exp(-np.quantile(noise, [0.01, 0.1, 0.5, 0.9, 0.99, 0.999])))
    np.testing.assert_allclose(quantiles, [0.01, 0.1, 0.5, 0.9, 0.99, 0.999], atol=0.004)
    assert abs(noise.mean() - 0.5772) < 0.02
    assert abs(noise.var() - np.pi**2 / 6) < 0.03
    neighbour = gumbel(7, 4, np.arange(200_000))
    assert abs(np.corrcoef(noise, neighbour)[0, 1]) < 0.01


def test_shared_noise_beats_greedy_drafts():
    """The distributions are close but flat, the case for shared noise (Daliri et al., arXiv:2408.07978)."""
    rng = np.random.default_rng(1)
    params = SamplingParams(1.0, 0, 1.0, 0.0, 9)
    shared = greedy = 0
    for position in range(600):
        target: Any = rng.standard_normal(200).astype(np.float32) * 1.5
        drafted = target + rng.standard_normal(200).astype(np.float32) * 0.2
        token = draw(target, params, position)
        shared += draw(drafted, params, position) == token
        greedy += int(drafted.argmax()) == token
    assert shared > 2 * greedy


def test_probability_is_the_softmax():
    row = row_of(2, 100, 2.0)
    p = np.exp(row.astype(np.float64))
    p /= p.sum()
    assert probability(row, 17) == pytest.approx(p[17], rel=1e-5)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 2.0, 4.0, 12.0])
@pytest.mark.parametrize("min_p", [0.0, 0.02])
def test_race_equals_full_argmax(scale: float, min_p: float):
    """Rows include flat ones, in which upper-tail tokens decide."""
    n_vocab = 40_000
    row = row_of(8, n_vocab, scale)
    every = np.arange(n_vocab)
    for position, temperature in enumerate([0.05, 0.5, 1.0, 1.0, 1.0, 1.7, 3.0] * 3):
        params = SamplingParams(temperature, 0, 1.0, min_p, seed=position % 5)
        allowed = row.astype(np.float64) >= row.max() + np.log(min_p) if min_p else every >= 0
        scores = row.astype(np.float64) / temperature + gumbel(params.seed, position, every)
        assert draw(row, params, position) == int(np.where(allowed, scores, -np.inf).argmax())


def test_equal_scores_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch):
    def coarse(_seed: int, _position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return np.where(tokens % 1000 == 700, 6.5, 0.0)

    monkeypatch.setattr(race, "lower_noise", coarse)

    def one(_seed: int, _position: int, _n_vocab: int) -> Noise:
        return Noise(np.array([900]), np.array([6.5]))

    monkeypatch.setattr(race, "upper_tail", one)
    params = SamplingParams(1.0, 0, 1.0, 0.0, 3)
    assert draw(np.zeros(5_000, np.float32), params, 1) == 700


def test_loud_tokens_are_those_with_much_noise():
    every = np.arange(200_000)
    noise = gumbel(5, 9, every)
    ids, tail = upper_tail(5, 9, len(every))
    assert ids.tolist() == np.flatnonzero(noise > TAIL_MIN).tolist()
    assert noise[ids].tolist() == tail.tolist()
    rest = np.delete(every, ids)
    assert lower_noise(5, 9, rest).tolist() == noise[rest].tolist()
    assert lower_noise(5, 9, every).max() <= TAIL_MIN < tail.min()
    assert upper_tail(5, 9, 1_000).ids.tolist() == [i for i in ids.tolist() if i < 1_000]
    assert lower_noise_few(5, 9, [77, 3]) == pytest.approx(
        lower_noise(5, 9, every)[[77, 3]].tolist(), abs=1e-9
    )


def test_loud_tokens_are_independent():
    """Every part of the vocabulary and every position has as many as independent trials."""
    n_vocab, n_positions = 64 * RARITY, 2_000
    counts = np.zeros(64)
    totals: list[int] = []
    for position in range(n_positions):
        ids = upper_tail(1, position, n_vocab).ids
        counts += np.bincount(ids // RARITY, minlength=64)
        totals.append(len(ids))
    assert deviation(counts, np.full(64, 1 / 64)) < UNLIKELY
    assert np.mean(totals) == pytest.approx(64, abs=5 * 8 / n_positions**0.5)
    assert np.var(totals) == pytest.approx(64, rel=0.2)
    assert abs(np.corrcoef(totals[1:], totals[:-1])[0, 1]) < 5 / n_positions**0.5


def test_the_uniform_numbers_of_a_position():
    numbers = np.array([uniform(7, position, 1) for position in range(20_000)])
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert deviation(np.histogram(numbers, 50, (0.0, 1.0))[0], np.full(50, 0.02)) < UNLIKELY
    other = np.array([uniform(7, position, 2) for position in range(20_000)])
    noise = np.array([gumbel(7, position, np.arange(1))[0] for position in range(20_000)])
    assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.03
    assert abs(np.corrcoef(numbers, noise)[0, 1]) < 0.03


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(1.0, 0, 1.0, 0.0), SamplingParams(0.6, 0, 0.8, 0.01)],
    ids=repr,
)
@pytest.mark.parametrize(("n_vocab", "scale"), [(50, 1.0), (6_000, 1.0), (6_000, 5.0)])
def test_the_distribution_is_the_filtered_softmax(params: SamplingParams, n_vocab: int, scale: float):
    row = row_of(4, n_vocab, scale)
    left = distribution(row, params)
    expected = reference(row, params)
    assert left.ids.tolist() == np.flatnonzero(expected).tolist()
    np.testing.assert_allclose(left.probabilities, expected[left.ids], rtol=1e-6)
    assert left.of(int(left.ids[0])) == left.probabilities[0]
    assert left.of(int(np.argmin(row))) == (0.0 if len(left.ids) < n_vocab else left.probabilities.min())


@pytest.mark.parametrize("top_p", [0.0, 0.5, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("min_p", [0.01, 0.05, 0.3])
def test_few_logits_filter_like_all(top_p: float, min_p: float):
    for seed in range(80):
        params = SamplingParams(0.8, 1 + seed % 12, top_p, min_p)
        row = row_of(seed, 700, 1.0 + seed / 10)
        expected = np.flatnonzero(reference(row, params))
        assert distribution(row, params).ids.tolist() == expected.tolist()


def test_zero_temperature_has_one_token():
    left = distribution(np.array([1.0, 5.0, 5.0], np.float32), SamplingParams(0.0))
    assert (left.ids.tolist(), left.probabilities.tolist()) == ([1], [1.0])
