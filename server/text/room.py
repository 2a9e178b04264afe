"""What a prompt may have, checked by bounds that cost nothing before the work that they bound."""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import ContextOverflowError


@dataclass(frozen=True, slots=True)
class Room:
    """A prompt has fewer than n_ctx tokens, and no token has more than `longest` bytes. param: the field of
    the request that an error names. All checks raise ContextOverflowError."""

    n_ctx: int
    longest: int

    def check_tokens(self, n_tokens: int, param: str = "messages", *, estimated: bool = False) -> None:
        """estimated: there are at least so many."""
        if n_tokens >= self.n_ctx:
            raise ContextOverflowError(n_tokens, self.n_ctx, param=param, estimated=estimated)

    def check_bytes(self, n_bytes: int, param: str = "messages") -> None:
        """Of a text that is not tokenised yet. A number of characters will do, too."""
        self.check_tokens(n_bytes // self.longest, param, estimated=True)


ANY = Room(1 << 62, 1)
