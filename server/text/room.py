"""Limits on the size of a prompt and on the time to render it."""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import ContextOverflowError

RENDER_S = 10.0
"""Seconds allowed for one rendering: 100 times what 1000 messages take on a busy machine.

A template that takes longer most likely never ends.
"""


@dataclass(frozen=True, slots=True)
class Room:
    """Limits on the size of a prompt.

    The check methods are called before the work is done; they raise ContextOverflowError that names a field.
    """

    n_ctx: int  # a prompt has fewer tokens than this
    longest: int  # bytes of the vocabulary's longest token
    render_s: float = RENDER_S  # seconds allowed for one rendering

    def check_tokens(self, n_tokens: int, param: str = "messages", *, estimated: bool = False) -> None:
        """Check a number of tokens, which is a lower bound if `estimated`."""
        if n_tokens >= self.n_ctx:
            raise ContextOverflowError(n_tokens, self.n_ctx, param=param, estimated=estimated)

    def check_bytes(self, n_bytes: int, param: str = "messages") -> None:
        """Check a text's size in bytes, or in characters, which is a lower bound of that."""
        self.check_tokens(n_bytes // self.longest, param, estimated=True)


ANY = Room(1 << 62, 1)
