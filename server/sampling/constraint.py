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
        """Return a mask, (vocab size,), of the tokens that may come next, at least one."""
        ...

    def accept(self, token: int) -> None:
        """Advance the state by a committed token.

        A token that is not allowed, such as a stop token, ends the constraint: all tokens are allowed after
        it.
        """
        ...

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow now, as far as the grammar knows them."""
        ...

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens`, from the first on, may follow; an estimate if the grammar cannot tell.

        Does not change the results of allows() and mask(), now or later.
        """
        ...
