"""Interface between sampling and compiled grammars: which tokens a grammar allows next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Constraint(Protocol):
    """The state of one generation under one grammar. Only accept() changes it."""

    def allows(self, token: int) -> bool:
        """Return True if this token may come next."""
        ...

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return an array, (vocab size,), that is True for tokens that may come next: at least one token."""
        ...

    def accept(self, token: int) -> None:
        """Advance the state by a committed token.

        A token that ends the text, or is not allowed, ends the constraint: all tokens are allowed after it.
        """
        ...

    def forced(self) -> tuple[int, ...]:
        """Return tokens that spell the text that must come next; empty if the next text is not certain."""
        ...

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """Return the length of the longest prefix of `tokens` that may come next.

        It is an estimate if the grammar cannot tell. Never changes what allows() and mask() return.
        """
        ...
