"""Find where a value ends in a growing text. Pure.

Only brackets and quotation marks count, so the text between them need not be valid JSON.
"""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_ESCAPED = re.compile(r".", re.DOTALL)
_WORD_END = re.compile(r"(?=[\s,}\]])")


class ValueScanner:
    """Finds the end of one JSON value: an object, an array, a string, or a word."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        # what to search for next; None before the value's first character
        self._next: re.Pattern[str] | None = None

    def scan(self, text: str, at: int) -> int:
        """Scan on from `at`; return the value's end if `done`, else the text's end.

        Args:
            text: The text so far.
            at: Where the last scan ended; for the first scan, the value's first character.
        """
        while at < len(text) and not self.done:
            if self._next is None:
                self._next = _STRUCTURE if text[at] in '{["' else _WORD_END
            found = self._next.search(text, at)
            at = found.end() if found else len(text)
            if found:
                self._take(found[0])
        return at

    def _take(self, marker: str) -> None:
        if self._next is _ESCAPED:
            self._next = _IN_STRING
            return
        match marker:
            case "\\":
                self._next = _ESCAPED
            case '"' if self._next is _STRUCTURE:
                self._next = _IN_STRING
            case '"':
                self._next = _STRUCTURE
                self.done = not self._depth
            case "{" | "[":
                self._depth += 1
            case _:  # a closing bracket, or the end of a word
                self._depth -= 1
                self.done = self._depth <= 0


class BracketScanner:
    """Finds the closing bracket of text with nested brackets and strings."""

    def __init__(self, quotes: tuple[str, ...], depth: int) -> None:
        """Begin a scan.

        Args:
            quotes: Quotation marks of strings. A backslash escapes only if the mark has one character.
            depth: Number of brackets that are open already.
        """
        self.done = False
        self._depth = depth
        self._quote = ""
        markers = "|".join(map(re.escape, quotes))
        self._outside = re.compile(rf"{markers}|[{{}}\[\]()]")
        self._inside = {
            q: re.compile(rf"{re.escape(q)}|\\." if len(q) == 1 else re.escape(q), re.DOTALL) for q in quotes
        }
        self._longest = max(map(len, quotes))

    def scan(self, text: str, at: int) -> int:
        """Scan on from `at`; return the index after the closing bracket if `done`, else where to continue."""
        while not self.done:
            looked = self._inside[self._quote] if self._quote else self._outside
            found = looked.search(text, at)
            if found is None:
                kept = self._longest - 1 if self._longest > 1 else text.endswith("\\")
                return max(at, len(text) - kept)
            at = found.end()
            self._take(found[0])
        return at

    def _take(self, marker: str) -> None:
        if self._quote:
            self._quote = "" if marker == self._quote else self._quote
        elif marker in self._inside:
            self._quote = marker
        else:
            self._depth += 1 if marker in "([{" else -1
            self.done = self._depth <= 0
