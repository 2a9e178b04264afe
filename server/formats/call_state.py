"""What readers of calls in any syntax have in common. Pure."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from enum import Enum, auto

from server.text.message import Arguments, CallBegun, Piece

_BLANK = re.compile(r"\s*")


class CallState(Enum):
    MORE = auto()  # what comes next decides
    DONE = auto()  # the call has ended at the place returned
    FAILED = auto()  # this is no call


class ArgumentReader(ABC):
    """The arguments of one call, in some syntax. What it has found is in `pieces`, for the caller to take;
    begun: the call, once its name is known; n_told: characters of arguments told."""

    def __init__(self, begun: CallBegun | None = None) -> None:
        self.pieces: list[Piece] = []
        self.state = CallState.MORE
        self.begun: CallBegun | None = None
        self.n_told = 0
        if begun:
            self._announce(begun)

    @abstractmethod
    def read(self, text: str, at: int) -> int:
        """Go on from `at`, which the last call of this returned. Returns how far the text was understood. The
        text may only have grown since."""

    @property
    def forgets(self) -> bool:
        """It does not need again what it has read."""
        return False

    @property
    def has_arguments(self) -> bool:
        """It has told all arguments of the call."""
        return self.state is CallState.DONE

    def _announce(self, begun: CallBegun) -> None:
        self.begun = begun
        self.pieces.append(begun)

    def _tell_arguments(self, text: str) -> None:
        assert self.begun
        self.n_told += len(text)
        self.pieces.append(Arguments(self.begun.index, text))


def new_call_id(index: int) -> str:
    """For a call to which the model gives none."""
    return f"call_{secrets.token_hex(12)}"


def after_blank(text: str, at: int = 0) -> int:
    """Where the white space at `at` ends."""
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at
