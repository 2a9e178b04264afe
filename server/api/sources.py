"""Of each token of a reply its text, and who guessed it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from server.text.alignment import Span


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

    def told(
        self, spans: Sequence[Span], is_content: Callable[[int, int], bool]
    ) -> list[dict[str, str | None]]:
        """Of those of these tokens that are content, all in all each once and in order. A character that two
        tokens share is the first one's."""
        found: list[dict[str, str | None]] = []
        for span in spans:
            start, self._n_told = max(span.start, self._n_told), max(span.end, self._n_told)
            if is_content(span.start, span.end):
                text = self._text[start : self._n_told]
                found.append({"text": text, "source": self._sources[span.position]})
        return found
