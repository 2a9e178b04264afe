"""Find which drafter guessed each part of a reply's text."""

from __future__ import annotations

from collections.abc import Sequence

from server.formats.reading import MessageReader
from server.text.detokenize import Span
from server.text.guard import unguarded


class SourcedText:
    """Collects a reply's text and the source of each of its tokens."""

    def __init__(self) -> None:
        self._sources: list[str | None] = []
        self._text = ""
        self._n_taken = 0

    def commit(self, sources: Sequence[str | None]) -> None:
        self._sources += sources

    def feed(self, text: str) -> None:
        self._text += text

    def take_sources(self, spans: Sequence[Span], reader: MessageReader) -> list[dict[str, str | None]]:
        """Return the text and the source of each token at `spans` that `reader` has read as content.

        Pass each token of a reply once, in order; the returned texts then join to the reply's content. A
        character that two tokens share belongs to the first token.
        """
        found: list[dict[str, str | None]] = []
        for span in spans:
            if reader.content.has(span.start, span.end):
                start, end = reader.content.part(span.start, span.end)
                text = unguarded(self._text[max(start, self._n_taken) : end])
                found.append({"text": text, "source": self._sources[span.position]})
            self._n_taken = max(span.end, self._n_taken)
        return found
