"""Guesses of a draft model: the draw itself, and how likely it is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from server.sampling.draft_token import DraftGuess, guess
from server.sampling.draw import draw
from server.sampling.params import SamplingParams
from tests.support import probability

Row = npt.NDArray[np.float32]

WAYS = [
    SamplingParams(0.0),
    SamplingParams(1.0, 0, 1.0, 0.0, 1),
    SamplingParams(0.7, 0, 0.9, 0.02, 2),
    SamplingParams(seed=3),
    SamplingParams(1.5, 1, 1.0, 0.0, 4),
]


def row_of(seed: int, n: int, scale: float) -> Row:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


@pytest.mark.parametrize("params", WAYS, ids=repr)
@pytest.mark.parametrize(
    ("n_vocab", "scale"), [(1, 1.0), (3, 1.0), (4_000, 0.3), (4_000, 4.0), (60_000, 2.0)]
)
def test_a_guess_is_the_draw(params: SamplingParams, n_vocab: int, scale: float):
    row = row_of(n_vocab, n_vocab, scale)
    for position in range(60):
        guessed = guess(row, params, position, second=True)
        assert guessed.token == draw(row, params, position)
        assert 0.0 <= guessed.confidence + guessed.second_confidence <= 1.0 + 1e-6
        assert guessed.second != guessed.token
        assert guess(row, params, position, second=False)[:2] == guessed[:2]


@pytest.mark.parametrize("params", WAYS, ids=repr)
@pytest.mark.parametrize(("n_vocab", "most"), [(1_500, 1.0), (30_000, 1.2), (60_000, 1.2)])
def test_confidence_is_the_probability(params: SamplingParams, n_vocab: int, most: float):
    """This is exact for a small vocabulary; in a large one it is rather more, since part is not looked at."""
    rng = np.random.default_rng(n_vocab)
    row = rng.standard_normal(n_vocab).astype(np.float32)
    row[rng.choice(n_vocab, 4, replace=False)] = (13.0, 12.5, 12.0, 11.5)
    for position in range(40):
        guessed = guess(row, params, position, second=True)
        assert guessed.second is not None
        others = np.delete(row, guessed.token)
        assert row[guessed.second] == others.max()
        shares = probability(row, guessed.token), probability(row, guessed.second)
        for exact, said in zip(shares, (guessed.confidence, guessed.second_confidence), strict=True):
            assert exact * 0.999 <= said <= exact * most * 1.001


@pytest.mark.parametrize("params", WAYS, ids=repr)
def test_nonsensical_model_is_not_sure(params: SamplingParams):
    assert guess(np.full(500, np.nan, np.float32), params, 1, second=True) == DraftGuess(0, 0.0)
