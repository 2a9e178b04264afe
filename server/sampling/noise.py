"""Gumbel noise that is a function of (seed, position, token id) alone.

A token's noise does not depend on the order of evaluation or on other tokens. So a text does not depend on
drafts, and a drafter can guess the lead's draw, not only its likeliest token (Daliri, Musco, Suresh,
arXiv:2408.07978).

One token in RARITY has noise in the upper tail, at least TAIL_MIN; all others have less. Tail tokens are
chosen by geometrically distributed gaps, as in independent trials, so no pass over the vocabulary is needed.
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
_GAPS = 0x67617073  # the purpose of numbers that choose tail tokens
_BLOCK_POSITIONS = 16  # positions whose tail tokens are found at once: costs little more than one position
_CACHED = 64  # entries of each cache: one for each of 64 sessions
_QUICK_IN_PYTHON = 16  # maximum tokens for which Python is faster than numpy

RARITY = 1024
TAIL_MIN = -math.log(-math.log1p(-1.0 / RARITY))  # minimum noise of tail tokens, maximum of all others (6.93)

_LOG_BELOW = math.log1p(-1.0 / RARITY)


class Noise(NamedTuple):
    """Ascending token ids, and the noise of each."""

    ids: Ids
    values: Floats


def mix(value: int) -> int:
    """Hash a 64-bit value with the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
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
            number share upper_tail()'s cache.
    """
    noise = lower_noise(seed, position, tokens)
    ids, tail = upper_tail(seed, position, n_vocab or 1 << int(tokens.max(initial=0)).bit_length())
    if len(ids):
        at = ids.searchsorted(tokens)
        (hits,) = (ids.take(at, mode="clip") == tokens).nonzero()
        if len(hits):
            noise[hits] = tail[at[hits]]
    return noise


def lower_noise(seed: int, position: int, tokens: Ids) -> Floats:
    """Return the noise of tokens that are not in upper_tail(); it is below TAIL_MIN.

    For tokens in upper_tail(), the returned values are wrong.
    """
    key = _position_key(seed, position)
    if len(tokens) > _QUICK_IN_PYTHON:
        return -np.log(-_LOG_BELOW - np.log(_uniforms_at(np.uint64(key), tokens)))
    return -np.log(-_LOG_BELOW - np.log(np.array(_uniforms_of(key, tokens.tolist()))))


def lower_noise_few(seed: int, position: int, tokens: Sequence[int]) -> list[float]:
    """Return the noise that lower_noise() returns, up to rounding errors; faster for a few tokens."""
    log = math.log
    return [-log(-_LOG_BELOW - log(u)) for u in _uniforms_of(_position_key(seed, position), tokens)]


def upper_tail(seed: int, position: int, n_vocab: int) -> Noise:
    """Return the tokens with ids below n_vocab that have upper-tail noise at this position, and the noise."""
    first = position - position % _BLOCK_POSITIONS
    return _tail_block(seed, first, n_vocab)[position - first]


@functools.lru_cache(_CACHED)
def _tail_block(seed: int, first: int, n_vocab: int) -> list[Noise]:
    """Return the results of upper_tail() for a block of positions.

    The block has _BLOCK_POSITIONS positions, from `first` on.
    """
    keys = np.array([_position_key(seed, first + i) for i in range(_BLOCK_POSITIONS)], np.uint64)[:, None]
    expected = n_vocab / RARITY
    n = int(expected + 3.0 * math.sqrt(expected)) + 8
    ids = _tail_ids(keys, n)
    while ids[:, -1].min() < n_vocab:  # once in several hundred blocks
        n *= 2
        ids = _tail_ids(keys, n)
    noise = -np.log(-np.log1p(_uniforms_at(keys, ids) / -RARITY))
    ends = (ids < n_vocab).sum(axis=1)
    return [Noise(ids[i, :end], noise[i, :end]) for i, end in enumerate(ends.tolist())]


def _tail_ids(keys: npt.NDArray[np.uint64], n: int) -> Ids:
    """Return the ascending ids of the first n upper-tail tokens per key, in shape (number of keys, n)."""
    uniforms = _uniforms_at(keys ^ np.uint64(mix(_GAPS)), np.arange(n))
    gaps = np.floor(np.log(uniforms) / _LOG_BELOW).astype(np.int64)
    return np.cumsum(gaps + 1, axis=-1) - 1


def uniform(seed: int, position: int, purpose: int) -> float:
    """Return a pseudo-random number in [0, 1) for a seed and position, independent of the Gumbel noise.

    purpose: A constant of the caller. Numbers of different purposes are independent.
    """
    return (mix(_position_key(mix(seed) ^ mix(purpose), position)) >> 11) * 2.0**-53


@functools.lru_cache(_CACHED)
def _position_key(seed: int, position: int) -> int:
    return mix(_mixed(seed) + _GOLDEN * (position + 1))


_mixed = functools.lru_cache(_CACHED)(mix)


def _uniforms_of(key: int, numbers: Sequence[int]) -> list[float]:
    """Hash one key with each number to a number in (0, 1), as _uniforms_at() does.

    Faster for a few numbers, because it avoids numpy.
    """
    found: list[float] = []
    for number in numbers:
        x = (key + number * _GOLDEN) & _MASK
        x = ((x ^ (x >> 30)) * _A) & _MASK
        x = ((x ^ (x >> 27)) * _B) & _MASK
        found.append(((x >> 33) + 0.5) * 2.0**-31)
    return found


def _uniforms_at(keys: np.uint64 | npt.NDArray[np.uint64], numbers: Ids) -> Floats:
    """Hash each pair of a key and a number to a number in (0, 1); both arrays are broadcast.

    The hash is mix() without its last step, and keeps only the upper bits.
    """
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
