"""Seam between sampling and compiled grammars: what a grammar allows next."""

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
        """Return a mask, (vocab size,), of the tokens that may come next, at least one."""
        ...

    def accept(self, token: int) -> None:
        """Advance the state by a committed token.

        A token that is not allowed, such as a stop token, ends the constraint: all tokens are allowed after
        it.
        """
        ...

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow now; fewer, or none, if the grammar does not know them."""
        ...

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens`, from the first one on, may follow; a guess if the grammar cannot tell.

        Changes nothing that allows() or mask() return, now or later.
        """
        ...
