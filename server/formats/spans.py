"""Record which characters of a reply are content. Pure."""

from __future__ import annotations


class ContentSpans:
    """Ranges of content characters, added in ascending order."""

    def __init__(self, *, plain: bool = False) -> None:
        """Begin without content; if `plain`, all text counts as content."""
        self._spans = [(0, 0)] if plain else list[tuple[int, int]]()

    def add(self, start: int, end: int) -> None:
        """Record that the characters from start to end are content."""
        if self._spans and self._spans[-1][1] == start:
            start = self._spans.pop()[0]
        self._spans.append((start, end))

    def has(self, start: int, end: int) -> bool:
        """Return True if any character of this range is content. All text before `end` must have been read.

        An empty range counts as content if it is within or beside content.
        """
        return self._span_at(start, end) is not None

    def part(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of the range `start` to `end` that is content; at least one character must be."""
        first, last = self._span_at(start, end) or (start, start)
        return max(start, first), min(end, last)

    def _span_at(self, start: int, end: int) -> tuple[int, int] | None:
        beside = start == end
        spans = reversed(self._spans)
        return next((span for span in spans if span[0] < end + beside and start < span[1] + beside), None)
