"""Bounds of a prompt, checked before the work that they bound."""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import ContextOverflowError


@dataclass(frozen=True, slots=True)
class Room:
    """A prompt has fewer than n_ctx tokens; no token has more than `longest` bytes. param: the field that the
    error names. Checks raise ContextOverflowError."""

    n_ctx: int
    longest: int

    def check_tokens(self, n_tokens: int, param: str = "messages", *, estimated: bool = False) -> None:
        """estimated: n_tokens is a lower bound."""
        if n_tokens >= self.n_ctx:
            raise ContextOverflowError(n_tokens, self.n_ctx, param=param, estimated=estimated)

    def check_bytes(self, n_bytes: int, param: str = "messages") -> None:
        """n_bytes: of the text, or its characters, which are fewer."""
        self.check_tokens(n_bytes // self.longest, param, estimated=True)


ANY = Room(1 << 62, 1)
