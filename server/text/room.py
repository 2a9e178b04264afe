"""Bounds of a prompt and of the work on it."""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import ContextOverflowError

RENDER_S = 10.0
"""Seconds of one rendering, a hundred times what 1000 messages take on a busy machine: a template that takes
longer most likely never ends."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a prompt may take.

    The methods check that before the work is done, and raise ContextOverflowError that names a field.
    """

    n_ctx: int  # a prompt has fewer tokens
    longest: int  # bytes of the longest token
    render_s: float = RENDER_S  # seconds of a rendering

    def check_tokens(self, n_tokens: int, param: str = "messages", *, estimated: bool = False) -> None:
        """estimated: n_tokens is a lower bound."""
        if n_tokens >= self.n_ctx:
            raise ContextOverflowError(n_tokens, self.n_ctx, param=param, estimated=estimated)

    def check_bytes(self, n_bytes: int, param: str = "messages") -> None:
        """n_bytes: of the text, or its characters, which are fewer."""
        self.check_tokens(n_bytes // self.longest, param, estimated=True)


ANY = Room(1 << 62, 1)
