"""States of idle conversations, copied from the KV cache to host memory before they have to leave it.
Pure."""

from __future__ import annotations

from collections.abc import Sequence


class Copies:
    """At most one for each sequence, with the tokens that it is of."""

    def __init__(self) -> None:
        self._by_seq: dict[int, tuple[tuple[int, ...], bytes]] = {}

    @property
    def n_bytes(self) -> int:
        return sum(len(data) for _, data in self._by_seq.values())

    def put(self, seq: int, tokens: Sequence[int], data: bytes) -> None:
        self._by_seq[seq] = tuple(tokens), data

    def has(self, seq: int, tokens: Sequence[int]) -> bool:
        """Whether there is a state of exactly these tokens."""
        return seq in self._by_seq and self._by_seq[seq][0] == tuple(tokens)

    def take(self, seq: int, tokens: Sequence[int]) -> bytes | None:
        """Drop the sequence's copy, and return it if it is of exactly these tokens."""
        copied, data = self._by_seq.pop(seq, ((), b""))
        return data if data and copied == tuple(tokens) else None

    def drop(self, seq: int) -> None:
        self._by_seq.pop(seq, None)

    def shrink(self, budget_bytes: int) -> None:
        """Drop the latest copies until the others fit."""
        while self._by_seq and self.n_bytes > budget_bytes:
            self._by_seq.popitem()
