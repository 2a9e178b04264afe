"""Gumbel noise that depends on nothing but (seed, position, token id).

Whoever holds the seed computes the same noise, in any order, for any subset of the vocabulary: that is what
makes a text independent of drafts, and what lets a drafter guess the lead's draw and not only its
favourite (Daliri, Musco, Suresh, arXiv:2408.07978).

One token in RARITY is loud: its noise is in the upper tail. Which ones is decided first, by gaps between them
that are geometrically distributed, as those of independent trials are. So the loud ones of a large vocabulary
are known without a look at the others, and a token that is not loud has less noise than LOUD.
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
_GAPS = 0x67617073  # what else than noise a position's numbers are for
_BLOCK = 16  # positions whose loud tokens are found at once
_CACHED = 64  # blocks
_FEW = 16  # tokens that are cheaper looked at one by one

RARITY = 1024
LOUD = -math.log(-math.log1p(-1.0 / RARITY))
"""What loud tokens have at least, and all others at most (6.93)."""

_LOG_QUIET = math.log1p(-1.0 / RARITY)


class Noise(NamedTuple):
    """ids ascend; values[i] is the noise of ids[i]."""

    ids: Ids
    values: Floats


def mix(value: int) -> int:
    """The 64-bit finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _A) & _MASK
    value = ((value ^ (value >> 27)) * _B) & _MASK
    return value ^ (value >> 31)


def gumbel(seed: int, position: int, tokens: Ids, n_vocab: int = 0) -> Floats:
    """Standard Gumbel noise for these token ids at one position of the sequence. n_vocab: all are below it,
    0 where that is not known; other noise is not had by it, but faster where `loud` was asked before."""
    noise = quiet(seed, position, tokens)
    ids, louder = loud(seed, position, n_vocab or 1 << int(tokens.max(initial=0)).bit_length())
    if len(ids):
        at = ids.searchsorted(tokens)
        (hits,) = (ids.take(at, mode="clip") == tokens).nonzero()
        if len(hits):
            noise[hits] = louder[at[hits]]
    return noise


def quiet(seed: int, position: int, tokens: Ids) -> Floats:
    """The noise of those of these tokens that are not loud; for a loud one less than it has."""
    key = _key(seed, position)
    if len(tokens) > _FEW:
        return -np.log(-_LOG_QUIET - np.log(_uniforms(np.uint64(key), tokens)))
    return -np.log(-_LOG_QUIET - np.log(np.array(_uniforms_of(key, tokens.tolist()))))


def quiet_few(seed: int, position: int, tokens: Sequence[int]) -> list[float]:
    """The same but for a rounding error, faster for a few tokens."""
    log = math.log
    return [-log(-_LOG_QUIET - log(u)) for u in _uniforms_of(_key(seed, position), tokens)]


def loud(seed: int, position: int, n_vocab: int) -> Noise:
    """The loud tokens among the ids below n_vocab."""
    first = position - position % _BLOCK
    return _loud_block(seed, first, n_vocab)[position - first]


@functools.lru_cache(_CACHED)
def _loud_block(seed: int, first: int, n_vocab: int) -> list[Noise]:
    """The same for _BLOCK positions from `first` on, which costs little more than for one."""
    keys = np.array([_key(seed, first + i) for i in range(_BLOCK)], np.uint64)[:, None]
    expected = n_vocab / RARITY
    n = int(expected + 3.0 * math.sqrt(expected)) + 8
    ids = _places(keys, n)
    while ids[:, -1].min() < n_vocab:  # once in several hundred blocks
        n *= 2
        ids = _places(keys, n)
    noise = -np.log(-np.log1p(_uniforms(keys, ids) / -RARITY))
    ends = (ids < n_vocab).sum(axis=1)
    return [Noise(ids[i, :end], noise[i, :end]) for i, end in enumerate(ends.tolist())]


def _places(keys: npt.NDArray[np.uint64], n: int) -> Ids:
    """The first n loud tokens for each key: (keys, n), ascending."""
    uniforms = _uniforms(keys ^ np.uint64(mix(_GAPS)), np.arange(n))
    gaps = np.floor(np.log(uniforms) / _LOG_QUIET).astype(np.int64)
    return np.cumsum(gaps + 1, axis=-1) - 1


def uniform(seed: int, position: int, purpose: int) -> float:
    """A number in [0, 1) for one position. Different purposes are independent of each other and of the
    Gumbel noise."""
    return (mix(_key(mix(seed) ^ mix(purpose), position)) >> 11) * 2.0**-53


@functools.lru_cache(_CACHED)
def _key(seed: int, position: int) -> int:
    return mix(_mixed(seed) + _GOLDEN * (position + 1))


_mixed = functools.lru_cache(_CACHED)(mix)


def _uniforms_of(key: int, numbers: Sequence[int]) -> list[float]:
    """What `_uniforms` gives for one key, number by number."""
    found: list[float] = []
    for number in numbers:
        x = (key + number * _GOLDEN) & _MASK
        x = ((x ^ (x >> 30)) * _A) & _MASK
        x = ((x ^ (x >> 27)) * _B) & _MASK
        found.append(((x >> 33) + 0.5) * 2.0**-31)
    return found


def _uniforms(keys: np.uint64 | npt.NDArray[np.uint64], numbers: Ids) -> Floats:
    """Numbers in (0, 1), one for each key and number: the upper bits of `mix`, which do without its end."""
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
