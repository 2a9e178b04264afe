"""A constraint whose texts are a list: one of these sequences of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class OneOf:
    """A Constraint to one of several lists of tokens."""

    def __init__(self, texts: Sequence[Sequence[int]], n_vocab: int) -> None:
        self._texts = [tuple(text) for text in texts]
        self._n_vocab = n_vocab
        self._so_far: tuple[int, ...] = ()

    def _next(self, so_far: Sequence[int]) -> set[int]:
        n = len(so_far)
        return {text[n] for text in self._texts if len(text) > n and text[:n] == tuple(so_far)}

    def allows(self, token: int) -> bool:
        return token in self._next(self._so_far)

    def mask(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros(self._n_vocab, np.bool_)
        mask[list(self._next(self._so_far))] = True
        return mask

    def accept(self, token: int) -> None:
        assert self.allows(token), (self._so_far, token)
        self._so_far = (*self._so_far, token)

    def forced(self) -> tuple[int, ...]:
        return ()

    def n_allowed(self, tokens: Sequence[int]) -> int:
        n = 0
        while n < len(tokens) and tokens[n] in self._next((*self._so_far, *tokens[:n])):
            n += 1
        return n
