"""The text and the drafter of each token of a reply."""

from __future__ import annotations

from collections.abc import Sequence

from server.text.detokenize import Span
from server.text.reading import MessageReader


class SourcedText:
    """Collects a reply's text and the sources of its tokens."""

    def __init__(self) -> None:
        self._sources: list[str | None] = []
        self._text = ""
        self._n_told = 0

    def commit(self, sources: Sequence[str | None]) -> None:
        self._sources += sources

    def feed(self, text: str) -> None:
        self._text += text

    def told(self, spans: Sequence[Span], reader: MessageReader) -> list[dict[str, str | None]]:
        """Text and source of those tokens that are content. Each token is told once and in order; the texts
        together are the content. A character of two tokens counts for the first."""
        found: list[dict[str, str | None]] = []
        for span in spans:
            if reader.is_content(span.start, span.end):
                start, end = reader.content_part(span.start, span.end)
                text = self._text[max(start, self._n_told) : end]
                found.append({"text": text, "source": self._sources[span.position]})
            self._n_told = max(span.end, self._n_told)
        return found
