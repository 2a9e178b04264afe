"""Of each token of a reply its text, and who guessed it."""

from __future__ import annotations

from collections.abc import Sequence

from server.text.alignment import Span
from server.text.reading import MessageReader


class SourcedText:
    """Gathers a reply's text and its tokens' sources, and tells them token by token."""

    def __init__(self) -> None:
        self._sources: list[str | None] = []
        self._text = ""
        self._n_told = 0

    def commit(self, sources: Sequence[str | None]) -> None:
        """Of as many tokens more."""
        self._sources += sources

    def feed(self, text: str) -> None:
        """More of the text."""
        self._text += text

    def told(self, spans: Sequence[Span], reader: MessageReader) -> list[dict[str, str | None]]:
        """Of those of these tokens that are content, all in all each once and in order: their texts make it
        up. A character that two tokens share is the first one's."""
        found: list[dict[str, str | None]] = []
        for span in spans:
            if reader.is_content(span.start, span.end):
                start, end = reader.content_part(span.start, span.end)
                text = self._text[max(start, self._n_told) : end]
                found.append({"text": text, "source": self._sources[span.position]})
            self._n_told = max(span.end, self._n_told)
        return found
