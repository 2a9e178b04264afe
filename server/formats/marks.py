"""Search a growing text for marks, and for text that may still become a mark. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from server.formats.description import is_token, tokens_in


class MarkFound(NamedTuple):
    """The place where a mark was found, or where one may be forming."""

    at: int  # the text before this index contains no mark
    mark: str  # the mark that begins there; "" if there is none, or none that is complete yet


class Marks:
    """Searches for any of several marks; where several begin, the longest wins."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = sorted({mark for mark in marks if mark}, key=lambda mark: (-len(mark), mark))
        self._any = re.compile("|".join(map(re.escape, self._marks)) or r"(?!)")
        firsts = "".join(sorted({re.escape(mark[0]) for mark in self._marks}))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")
        self._longest = len(self._marks[0]) if self._marks else 0

    def __bool__(self) -> bool:
        return bool(self._marks)

    def first(self, text: str, *, ended: bool) -> MarkFound:
        """Find the first mark.

        Args:
            text: The text so far.
            ended: True if no text follows, so that an unfinished mark is ordinary text.
        """
        found = self._any.search(text)
        stop = found.start() if found else len(text)
        if not ended:
            for start in self._first.finditer(
                text, max(0, len(text) - self._longest + 1), stop + bool(found)
            ):
                if self.grows(text[start.start() :], found[0] if found and start.start() == stop else ""):
                    return MarkFound(start.start(), "")
        return MarkFound(stop, found[0] if found else "")

    def at_beginning(self, text: str, *, ended: bool) -> str | None:
        """Return the mark that the text begins with; "" if there is none, None if only more text can tell."""
        if not ended and self.grows(text):
            return None
        found = self._any.match(text)
        return found[0] if found else ""

    def broken_off(self, text: str) -> int | None:
        """If the text ends inside a mark, return where that mark begins, else None.

        At least the first whole token of the mark must be there.
        """
        for start in self._first.finditer(text, max(0, len(text) - self._longest + 1)):
            rest = text[start.start() :]
            if is_token(tokens_in(rest)[0]) and self.grows(rest):
                return start.start()
        return None

    def grows(self, text: str, than: str = "") -> bool:
        """Return True if the text may still become a mark that is longer than `than`."""
        return any(
            len(mark) > len(text) and len(mark) > len(than) and mark.startswith(text) for mark in self._marks
        )
