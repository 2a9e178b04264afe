"""Copies of idle conversations in host memory, so that these conversations can leave the KV cache at once."""

from __future__ import annotations

from collections.abc import Sequence


class Copies(dict[int, tuple[tuple[int, ...], bytes]]):
    """Maps a sequence to its copy: (tokens, saved state)."""

    @property
    def n_bytes(self) -> int:
        return sum(len(data) for _, data in self.values())

    def has(self, seq: int, tokens: Sequence[int]) -> bool:
        """Return True if there is a copy of exactly these tokens."""
        return seq in self and self[seq][0] == tuple(tokens)

    def take(self, seq: int, tokens: Sequence[int]) -> bytes | None:
        """Remove the sequence's copy; return its state if it has exactly these tokens, else None."""
        copied, data = self.pop(seq, ((), b""))
        return data if data and copied == tuple(tokens) else None

    def shrink(self, budget_bytes: int) -> None:
        """Drop copies, the latest first, until the rest fits into the budget."""
        while self and self.n_bytes > budget_bytes:
            self.popitem()
