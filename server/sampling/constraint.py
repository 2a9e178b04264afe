"""What a grammar allows next: the seam between sampling and compiled grammars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Constraint(Protocol):
    """The state of one generation under one grammar. Advances on accept() only."""

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        ...

    def mask(self) -> npt.NDArray[np.bool_]:
        """(vocab size,): which tokens may come next; at least one."""
        ...

    def accept(self, token: int) -> None:
        """Follow a committed token.

        One that is not allowed, such as a stop token, ends the constraint: all tokens are allowed after it.
        """
        ...

    def forced(self) -> tuple[int, ...]:
        """Tokens that must follow now, as far as is known."""
        ...

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens of these guesses may follow; another number where that is not known.

        Changes nothing that allows() or mask() return, now or later.
        """
        ...
