"""Convert sequence breakers of the DRY sampler to tokens."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from server.llama.backend import Vocabulary

_BETWEEN = b"\xff"  # separates pieces; no text contains it, so no match spans two pieces


def breaker_tokens(vocabulary: Vocabulary, breakers: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences that count as breakers, given the breakers' texts.

    Each breaker gives the tokens of its own text, and every single token whose text contains the breaker.
    Unlike in llama.cpp, tokens that contain only a breaker's beginning are left out. The first call for a
    vocabulary reads the texts of all its tokens.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for breaker in breakers:
        sequences[tuple(vocabulary.tokenize(breaker, special=False))] = None
        sequences.update(dict.fromkeys((token,) for token in _tokens_with(vocabulary, breaker)))
    sequences.pop((), None)
    return tuple(sequences)


def _tokens_with(vocabulary: Vocabulary, breaker: str) -> list[int]:
    pieces, starts = _joined_pieces(vocabulary)
    at = [match.start() for match in re.finditer(re.escape(breaker.encode()), pieces)]
    found: list[int] = np.unique(np.searchsorted(starts, at, side="right") - 1).tolist()
    return found


@lru_cache(maxsize=2)
def _joined_pieces(vocabulary: Vocabulary) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return the texts of all tokens, joined by _BETWEEN, and the byte index at which each text begins."""
    pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
    lengths = [len(piece) + len(_BETWEEN) for piece in pieces]
    starts = np.concatenate(([0], np.cumsum(lengths[:-1], dtype=np.int64))).astype(np.int64)
    return _BETWEEN.join(pieces), starts
