"""Which tokens the text that has been sent is made of."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Span(NamedTuple):
    """A token's characters: those it contributes to, an unfinished one at either end included."""

    position: int
    start: int
    end: int


class Alignment:
    """Releases tokens, by their position in the reply, with the text they are made of.

    A token whose last bytes begin a character belongs to the text that this character is part of: it is
    released once the whole character has been sent.
    """

    def __init__(self) -> None:
        self._held: deque[Span] = deque()
        self._n_made = 0

    def add(self, position: int, text: str, *, unfinished: bool) -> None:
        """The token completed this text; unfinished: its last bytes begin a character not yet in it."""
        start = self._n_made
        self._n_made += len(text)
        self._held.append(Span(position, start, self._n_made + unfinished))

    def released(self, n_sent: int) -> list[Span]:
        """The tokens not released before that are complete in the first n_sent characters."""
        spans: list[Span] = []
        while self._held and self._held[0].end <= n_sent:
            spans.append(self._held.popleft())
        return spans

    def cut(self, n_sent: int) -> list[Span]:
        """The tokens not released before that have a part in the first n_sent characters, where the text
        has been cut off. Those wholly beyond are dropped."""
        spans = [span for span in self._held if span.start < n_sent]
        self._held.clear()
        return spans
