"""Gumbel noise that is a function of (seed, position, token id) alone.

It is the same in any order, and for any subset of the vocabulary. So a text does not depend on drafts, and a
drafter can guess the lead's draw, not only its likeliest token (Daliri, Musco, Suresh, arXiv:2408.07978).

One token in RARITY is loud: its noise is in the upper tail. Loud tokens are chosen by gaps of a geometric
distribution, that of independent trials, so they are known without a pass over the vocabulary. All others
have less noise than LOUD.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_A = 0xBF58476D1CE4E5B9
_B = 0x94D049BB133111EB
_U64_GOLDEN, _U64_A, _U64_B = np.uint64(_GOLDEN), np.uint64(_A), np.uint64(_B)
_U64_27, _U64_30, _U64_33 = np.uint64(27), np.uint64(30), np.uint64(33)
_GAPS = 0x67617073  # the purpose of numbers that choose loud tokens
_BLOCK_POSITIONS = 16  # positions whose loud tokens are found at once: costs little more than one
_CACHED = 64  # blocks: those of 64 sessions
_QUICK_IN_PYTHON = 16  # tokens: as many are faster in Python than in numpy

RARITY = 1024
LOUD = -math.log(-math.log1p(-1.0 / RARITY))  # least noise of loud tokens, most of all others (6.93)

_LOG_QUIET = math.log1p(-1.0 / RARITY)


class Noise(NamedTuple):
    """Ascending token ids, and the noise of each."""

    ids: Ids
    values: Floats


def mix(value: int) -> int:
    """Return the value after the 64-bit finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _A) & _MASK
    value = ((value ^ (value >> 27)) * _B) & _MASK
    return value ^ (value >> 31)


def gumbel(seed: int, position: int, tokens: Ids, n_vocab: int = 0) -> Floats:
    """Return standard Gumbel noise for these token ids at one position.

    Args:
        seed: The request's seed.
        position: Position of the token being chosen.
        tokens: Token ids.
        n_vocab: A number above all ids, 0 if unknown. It does not affect the noise; calls with the same
            number share loud()'s cache.
    """
    noise = quiet(seed, position, tokens)
    ids, louder = loud(seed, position, n_vocab or 1 << int(tokens.max(initial=0)).bit_length())
    if len(ids):
        at = ids.searchsorted(tokens)
        (hits,) = (ids.take(at, mode="clip") == tokens).nonzero()
        if len(hits):
            noise[hits] = louder[at[hits]]
    return noise


def quiet(seed: int, position: int, tokens: Ids) -> Floats:
    """Return the noise of these tokens, none of which may be loud; it is less than any loud token's."""
    key = _position_key(seed, position)
    if len(tokens) > _QUICK_IN_PYTHON:
        return -np.log(-_LOG_QUIET - np.log(_uniforms_at(np.uint64(key), tokens)))
    return -np.log(-_LOG_QUIET - np.log(np.array(_uniforms_of(key, tokens.tolist()))))


def quiet_few(seed: int, position: int, tokens: Sequence[int]) -> list[float]:
    """Return the noise that quiet() returns, up to rounding errors; faster for a few tokens."""
    log = math.log
    return [-log(-_LOG_QUIET - log(u)) for u in _uniforms_of(_position_key(seed, position), tokens)]


def loud(seed: int, position: int, n_vocab: int) -> Noise:
    """Return the tokens below n_vocab that are loud at this position: whose noise is in the upper tail."""
    first = position - position % _BLOCK_POSITIONS
    return _loud_block(seed, first, n_vocab)[position - first]


@functools.lru_cache(_CACHED)
def _loud_block(seed: int, first: int, n_vocab: int) -> list[Noise]:
    """Return the loud tokens (upper-tail noise) and their noise, as loud() does, for a block of positions.

    The block has _BLOCK_POSITIONS positions, from `first` on.
    """
    keys = np.array([_position_key(seed, first + i) for i in range(_BLOCK_POSITIONS)], np.uint64)[:, None]
    expected = n_vocab / RARITY
    n = int(expected + 3.0 * math.sqrt(expected)) + 8
    ids = _loud_ids(keys, n)
    while ids[:, -1].min() < n_vocab:  # once in several hundred blocks
        n *= 2
        ids = _loud_ids(keys, n)
    noise = -np.log(-np.log1p(_uniforms_at(keys, ids) / -RARITY))
    ends = (ids < n_vocab).sum(axis=1)
    return [Noise(ids[i, :end], noise[i, :end]) for i, end in enumerate(ends.tolist())]


def _loud_ids(keys: npt.NDArray[np.uint64], n: int) -> Ids:
    """Return the ascending ids of the first n loud (upper-tail noise) tokens per key: (number of keys, n)."""
    uniforms = _uniforms_at(keys ^ np.uint64(mix(_GAPS)), np.arange(n))
    gaps = np.floor(np.log(uniforms) / _LOG_QUIET).astype(np.int64)
    return np.cumsum(gaps + 1, axis=-1) - 1


def uniform(seed: int, position: int, purpose: int) -> float:
    """Return a number in [0, 1) for one position, independent of those of other purposes and of the noise."""
    return (mix(_position_key(mix(seed) ^ mix(purpose), position)) >> 11) * 2.0**-53


@functools.lru_cache(_CACHED)
def _position_key(seed: int, position: int) -> int:
    return mix(_mixed(seed) + _GOLDEN * (position + 1))


_mixed = functools.lru_cache(_CACHED)(mix)


def _uniforms_of(key: int, numbers: Sequence[int]) -> list[float]:
    """Return the numbers that _uniforms_at() returns for one key; faster for a few, as it avoids numpy."""
    found: list[float] = []
    for number in numbers:
        x = (key + number * _GOLDEN) & _MASK
        x = ((x ^ (x >> 30)) * _A) & _MASK
        x = ((x ^ (x >> 27)) * _B) & _MASK
        found.append(((x >> 33) + 0.5) * 2.0**-31)
    return found


def _uniforms_at(keys: np.uint64 | npt.NDArray[np.uint64], numbers: Ids) -> Floats:
    """Return a number in (0, 1) for each key and number: mix() without its last step, upper bits only."""
    x = numbers.astype(np.uint64)
    x *= _U64_GOLDEN
    x = x + keys
    x ^= x >> _U64_30
    x *= _U64_A
    x ^= x >> _U64_27
    x *= _U64_B
    x >>= _U64_33
    found = x.astype(np.float64)
    found += 0.5
    found *= 2.0**-31
    return found
