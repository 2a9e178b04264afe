"""Which characters of a reply are content. Pure."""

from __future__ import annotations


class ContentSpans:
    """Grows from the text's beginning to its end."""

    def __init__(self, *, plain: bool = False) -> None:
        """plain: all of them will be."""
        self._spans = [(0, 0)] if plain else list[tuple[int, int]]()

    def add(self, start: int, end: int) -> None:
        """The characters from start to end are content, and none of those between this and the last."""
        if self._spans and self._spans[-1][1] == start:
            start = self._spans.pop()[0]
        self._spans.append((start, end))

    def has(self, start: int, end: int) -> bool:
        """Whether any of these characters of the text, by now settled, is content; of none: whether they are
        within or beside it."""
        return self._at(start, end) is not None

    def part(self, start: int, end: int) -> tuple[int, int]:
        """Which of these characters, some of which are content, are content."""
        first, last = self._at(start, end) or (start, start)
        return max(start, first), min(end, last)

    def _at(self, start: int, end: int) -> tuple[int, int] | None:
        beside = start == end
        spans = reversed(self._spans)
        return next((span for span in spans if span[0] < end + beside and start < span[1] + beside), None)
