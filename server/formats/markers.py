"""Search a growing text for markers, and for text that may still become a marker. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from server.formats.description import is_token, tokens_in


class MarkerFound(NamedTuple):
    """The index where a marker was found, or where one may be forming."""

    at: int  # the text before this index contains no marker
    marker: str  # the marker that begins there; "" if there is none, or none that is complete yet


class Markers:
    """Searches for any of several markers. If several begin at one index, the longest one counts."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = sorted(
            {marker for marker in markers if marker}, key=lambda marker: (-len(marker), marker)
        )
        self._any = re.compile("|".join(map(re.escape, self._markers)) or r"(?!)")
        firsts = "".join(sorted({re.escape(marker[0]) for marker in self._markers}))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")
        self._longest = len(self._markers[0]) if self._markers else 0

    def __bool__(self) -> bool:
        return bool(self._markers)

    def first(self, text: str, *, ended: bool) -> MarkerFound:
        """Find the first marker.

        Args:
            text: The text so far.
            ended: True if no text follows, so that an unfinished marker is ordinary text.
        """
        found = self._any.search(text)
        stop = found.start() if found else len(text)
        if not ended:
            for start in self._first.finditer(
                text, max(0, len(text) - self._longest + 1), stop + bool(found)
            ):
                if self.grows(text[start.start() :], found[0] if found and start.start() == stop else ""):
                    return MarkerFound(start.start(), "")
        return MarkerFound(stop, found[0] if found else "")

    def at_beginning(self, text: str, *, ended: bool) -> str | None:
        """Return the marker that the text begins with, "" if there is none, None if more text must decide.

        ended: True if no text follows.
        """
        if not ended and self.grows(text):
            return None
        found = self._any.match(text)
        return found[0] if found else ""

    def broken_off(self, text: str) -> int | None:
        """Return the index of an unfinished marker at the text's end, None if there is none.

        A marker counts only if its first token is complete.
        """
        for start in self._first.finditer(text, max(0, len(text) - self._longest + 1)):
            rest = text[start.start() :]
            if is_token(tokens_in(rest)[0]) and self.grows(rest):
                return start.start()
        return None

    def grows(self, text: str, than: str = "") -> bool:
        """Return True if the text may still become a marker that is longer than `than`."""
        return any(
            len(marker) > len(text) and len(marker) > len(than) and marker.startswith(text)
            for marker in self._markers
        )
