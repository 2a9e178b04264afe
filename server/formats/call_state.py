"""Define the base of all readers of a tool call's arguments. Pure."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from enum import Enum, auto

from server.text.message import Arguments, CallStart, Piece

_BLANK = re.compile(r"\s*")


class CallState(Enum):
    """The state of an ArgumentReader."""

    MORE = auto()  # more text is needed
    DONE = auto()  # the call has ended where read() stopped
    FAILED = auto()  # the text is not a call


class ArgumentReader(ABC):
    """Base class: reads the arguments of one call, in one syntax, from a growing text."""

    def __init__(self, begun: CallStart | None = None) -> None:
        """Begin a call. begun: the call if its name is known already; it becomes the first piece."""
        self.pieces: list[Piece] = []  # pieces found so far; the caller takes them out
        self.state = CallState.MORE
        self.begun: CallStart | None = None  # the call, once its name is known
        self.n_emitted = 0  # characters of the arguments that have been put into `pieces`
        if begun:
            self._announce(begun)

    @abstractmethod
    def read(self, text: str, at: int) -> int:
        """Read more of the call, and return the index up to which the text was read.

        Args:
            text: The text so far; it only grows between calls.
            at: Where to continue: what the previous read() returned.
        """

    @property
    def forgets(self) -> bool:
        """True if the reader no longer needs the text before the index that read() returned."""
        return False

    @property
    def has_arguments(self) -> bool:
        """True once all arguments of the call have been emitted."""
        return self.state is CallState.DONE

    def _announce(self, begun: CallStart) -> None:
        self.begun = begun
        self.pieces.append(begun)

    def _emit_arguments(self, text: str) -> None:
        assert self.begun
        self.n_emitted += len(text)
        self.pieces.append(Arguments(self.begun.index, text))


def new_call_id(index: int) -> str:
    """Return a random id for a call to which the model gave none. The call's number is ignored."""
    return f"call_{secrets.token_hex(12)}"


def after_blank(text: str, at: int = 0) -> int:
    """Return the index after the white space that begins at `at`; `at` if there is none."""
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at
