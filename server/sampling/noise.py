"""Gumbel noise that depends on nothing but (seed, position, token id).

Whoever holds the seed computes the same noise, in any order, for any subset of the vocabulary: that is what
makes a text independent of drafts, and what lets a drafter guess the lead's draw and not only its
favourite (Daliri, Musco, Suresh, arXiv:2408.07978).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_A = 0xBF58476D1CE4E5B9
_B = 0x94D049BB133111EB
_UNIFORM = 1.0 / ((1 << 24) + 1)
_CHUNK = 32_768  # two buffers of this many 64-bit words stay in a core's cache
_PRODUCTS = np.arange(_CHUNK, dtype=np.uint64) * np.uint64(_GOLDEN)
_LOUD_FROM = (1 << 24) - (1 << 14)

MAX_NOISE = 16.64
"""No noise exceeds this (24-bit uniforms: -log(-log(2^24 / (2^24 + 1))) = 16.6355)."""

LOUD = -math.log(-math.log((_LOUD_FROM + 1) * _UNIFORM))
"""What `loud` calls loud: one token in 1024 has this much noise (6.93) or more."""


def mix(value: int) -> int:
    """The 64-bit finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _A) & _MASK
    value = ((value ^ (value >> 27)) * _B) & _MASK
    return value ^ (value >> 31)


def gumbel(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for these token ids at one position of the sequence, in (-2.82, MAX_NOISE)."""
    x = tokens.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(_key(seed, position))
    _finalise(x, np.empty_like(x))
    uniform = ((x >> np.uint64(40)).astype(np.float64) + 1.0) * _UNIFORM
    return -np.log(-np.log(uniform))


def loud(seed: int, position: int, n_vocab: int) -> npt.NDArray[np.int64]:
    """The ids below n_vocab, ascending, whose noise is at least LOUD. Costs 2 ns a token: no logarithms, and
    chunks that stay in the cache."""
    key, floor = _key(seed, position), np.uint64(_LOUD_FROM << 40)
    x, spare = np.empty(_CHUNK, np.uint64), np.empty(_CHUNK, np.uint64)
    found: list[npt.NDArray[np.int64]] = []
    for start in range(0, n_vocab, _CHUNK):
        n = min(_CHUNK, n_vocab - start)
        np.add(_PRODUCTS[:n], np.uint64((key + start * _GOLDEN) & _MASK), out=x[:n])
        _finalise(x[:n], spare[:n])
        found.append(np.flatnonzero(x[:n] >= floor) + start)
    return np.concatenate(found)


def loud_among(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Those of these ids whose noise is at least LOUD: cheaper than `loud` where they are few."""
    x = tokens.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(_key(seed, position))
    _finalise(x, np.empty_like(x))
    return tokens[x >= np.uint64(_LOUD_FROM << 40)]


def uniform(seed: int, position: int, purpose: int) -> float:
    """A number in [0, 1) for one position. Different purposes are independent of each other and of the
    Gumbel noise."""
    return (mix(_key(mix(seed) ^ mix(purpose), position)) >> 11) * 2.0**-53


def _key(seed: int, position: int) -> int:
    return mix(mix(seed) + _GOLDEN * (position + 1))


def _finalise(x: npt.NDArray[np.uint64], spare: npt.NDArray[np.uint64]) -> None:
    """`mix` in place, without its last step, which leaves the upper 31 bits as they are: only the upper 24
    are used."""
    np.bitwise_xor(x, np.right_shift(x, np.uint64(30), out=spare), out=x)
    np.multiply(x, np.uint64(_A), out=x)
    np.bitwise_xor(x, np.right_shift(x, np.uint64(27), out=spare), out=x)
    np.multiply(x, np.uint64(_B), out=x)
