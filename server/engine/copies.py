"""States of conversations that rest in the KV cache, copied while nothing else is to be done: when one has to
leave, its state is in host memory already. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Copy:
    tokens: tuple[int, ...]
    data: bytes


class Copies:
    """One for each sequence at most, of the tokens that it had then."""

    def __init__(self) -> None:
        self._by_seq: dict[int, _Copy] = {}

    @property
    def n_bytes(self) -> int:
        return sum(len(copy.data) for copy in self._by_seq.values())

    def put(self, seq: int, tokens: Sequence[int], data: bytes) -> None:
        self._by_seq[seq] = _Copy(tuple(tokens), data)

    def get(self, seq: int, tokens: Sequence[int]) -> bytes | None:
        """The state, if it is of these tokens."""
        copy = self._by_seq.get(seq)
        return copy.data if copy is not None and copy.tokens == tuple(tokens) else None

    def drop(self, seq: int) -> None:
        self._by_seq.pop(seq, None)

    def shrink(self, most_bytes: int) -> None:
        """Drop until no more than that is left, the latest first."""
        while self._by_seq and self.n_bytes > most_bytes:
            self._by_seq.popitem()
