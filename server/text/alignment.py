"""Which tokens the sent text is made of."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Span(NamedTuple):
    """start, end: characters of a token, unfinished ones at either end included."""

    position: int
    start: int
    end: int


class Alignment:
    """Releases tokens, by their position in the reply, with their text.

    A token that ends within a character is released when the whole character is sent."""

    def __init__(self) -> None:
        self._held: deque[Span] = deque()
        self._n_made = 0

    def add(self, position: int, text: str, *, unfinished: bool) -> None:
        """text: what the token completes; unfinished: it ends within a character."""
        start = self._n_made
        self._n_made += len(text)
        self._held.append(Span(position, start, self._n_made + unfinished))

    def released(self, n_sent: int) -> list[Span]:
        """Tokens that are complete in the first n_sent characters, each once."""
        spans: list[Span] = []
        while self._held and self._held[0].end <= n_sent:
            spans.append(self._held.popleft())
        return spans

    def cut(self, n_sent: int) -> list[Span]:
        """Tokens not released yet that have a part in the first n_sent characters, where the text was cut.
        Later tokens are dropped."""
        spans = [span for span in self._held if span.start < n_sent]
        self._held.clear()
        return spans
