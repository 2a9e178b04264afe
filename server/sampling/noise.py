"""Gumbel noise that depends on nothing but (seed, position, token id).

Whoever holds the seed computes the same noise, in any order, for any subset of the vocabulary: that is what
makes a text independent of drafts, and what lets a drafter guess the lead's draw and not only its
favourite (Daliri, Musco, Suresh, arXiv:2408.07978).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_A = 0xBF58476D1CE4E5B9
_B = 0x94D049BB133111EB
_UNIFORM = 1.0 / ((1 << 24) + 1)

MAX_NOISE = 16.64
"""No noise exceeds this (24-bit uniforms: -log(-log(2^24 / (2^24 + 1))) = 16.6355)."""


def mix(value: int) -> int:
    """The 64-bit finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _A) & _MASK
    value = ((value ^ (value >> 27)) * _B) & _MASK
    return value ^ (value >> 31)


def gumbel(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for these token ids at one position of the sequence, in (-2.82, MAX_NOISE)."""
    key = np.uint64(mix(mix(seed) + _GOLDEN * (position + 1)))
    x = tokens.astype(np.uint64) * np.uint64(_GOLDEN) + key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_A)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_B)
    x ^= x >> np.uint64(31)
    uniform = ((x >> np.uint64(40)).astype(np.float64) + 1.0) * _UNIFORM
    return -np.log(-np.log(uniform))
