"""Penalise repetitions as llama.cpp's DRY ("don't repeat yourself") sampler does.

The penalty of a token grows with the length of the repetition that the token would continue.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np

from server.sampling.candidates import Candidates
from server.sampling.draw import Floats, Ids
from server.sampling.params import SamplingParams

_LARGEST_EXPONENT = math.log(float(np.finfo(np.float32).max))  # a penalty is a float32 in llama.cpp
_LARGEST = 1e30  # maximum penalty: as good as a ban, without overflow


class Dry:
    """DRY penalties of one generation.

    Repetitions are sought in its last `dry_penalty_last_n` tokens (-1: all), including the prompt.
    """

    def __init__(self, params: SamplingParams, history: Sequence[int]):
        self._params = params
        n = params.dry_penalty_last_n
        self._recent = slice(-n if n > 0 else None, None)
        self._tokens = array("q", history[self._recent])
        self._breakers: dict[int, list[tuple[int, ...]]] = {}
        for head, *tail in params.dry_sequence_breakers:
            self._breakers.setdefault(head, []).append(tuple(tail))
        self._longest_tail = max((len(b) - 1 for b in params.dry_sequence_breakers), default=0)
        single = [head for head, tails in self._breakers.items() if () in tails]
        self._single = np.array(sorted(single), np.int64)

    def accept(self, token: int) -> None:
        """Add a committed token."""
        self._tokens.append(token)

    def apply(self, c: Candidates) -> None:
        tokens, penalties = self.penalties()
        at, found = c.find(tokens)
        c.replace(at, c.logits[at] - penalties[found])

    def penalties(self) -> tuple[Ids, Floats]:
        """Return the tokens that would continue a repetition, and the penalty of each.

        The penalty, to subtract from the logit, is multiplier * base ** (repetition length - allowed length).
        """
        p, newest_first = self._params, np.asarray(self._tokens)[self._recent][::-1]
        if len(newest_first) <= p.dry_allowed_length:
            return np.zeros(0, np.int64), np.zeros(0)
        lengths = self._repeat_lengths(newest_first)
        lengths = np.minimum(lengths, self._n_unbroken(newest_first, int(lengths.max())))
        at = 1 + np.flatnonzero(lengths[1:] >= p.dry_allowed_length)
        tokens, which = np.unique(newest_first[at - 1], return_inverse=True)
        longest = np.zeros(len(tokens), np.int64)
        np.maximum.at(longest, which, lengths[at])
        exponents = np.minimum(longest - p.dry_allowed_length, self._largest_exponent(len(newest_first)))
        penalties = np.minimum(p.dry_multiplier * p.dry_base ** exponents.astype(np.float64), _LARGEST)
        breaks = np.isin(tokens, self._single)
        return tokens[~breaks], penalties[~breaks]

    def _repeat_lengths(self, newest_first: Ids) -> Ids:
        """Return the length of the repetition that ends at each position, 0 without one.

        A repetition is a run of tokens that equals the newest tokens. Index k of argument and result is the
        position k tokens before the newest one. Lengths stop at the one that gives the largest penalty.
        """
        longest = self._params.dry_allowed_length + self._largest_exponent(len(newest_first))
        lengths = np.zeros(len(newest_first), np.int64)
        at = 1 + np.flatnonzero(newest_first[1:] == newest_first[0])
        length = 0
        while len(at) and length < longest:
            length += 1
            lengths[at] = length
            at = at[at + length < len(newest_first)]
            at = at[newest_first[at + length] == newest_first[length]]
        return lengths

    def _n_unbroken(self, newest_first: Ids, far: int) -> int:
        """Return the number of tokens after the last sequence breaker, which no repetition crosses.

        Args:
            newest_first: The tokens.
            far: Length of the longest repetition; breakers before it are ignored.
        """
        reach = min(len(newest_first), far + self._longest_tail + 1)
        recent: list[int] = newest_first[:reach].tolist() if self._breakers else []
        for i, token in enumerate(recent):
            tails = self._breakers.get(token, ())
            matching = [len(t) for t in tails if len(t) <= i and list(t) == recent[i - len(t) : i][::-1]]
            if matching:
                return i - max(matching)
        return len(newest_first)

    def _largest_exponent(self, otherwise: int) -> int:
        base = self._params.dry_base
        return int(_LARGEST_EXPONENT / math.log(base)) if base > 1.000001 else otherwise
