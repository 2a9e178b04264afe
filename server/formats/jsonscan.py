"""Where a value ends in a text that is still growing. Pure.

It looks at brackets and quotation marks only: what is between them may be no JSON at all.
"""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_ESCAPED = re.compile(r".", re.DOTALL)
_WORD_END = re.compile(r"(?=[\s,}\]])")


class ValueScanner:
    """One value: an object, an array, a string, or a word."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._next: re.Pattern[str] | None = None  # what is looked for; None before the value's beginning

    def scan(self, text: str, at: int) -> int:
        """Go on from `at`, where the last scan ended; the value has no white space before it. Returns where
        it ends, which is the end of the text as long as it is not `done`."""
        while at < len(text) and not self.done:
            if self._next is None:
                self._next = _STRUCTURE if text[at] in '{["' else _WORD_END
            found = self._next.search(text, at)
            at = found.end() if found else len(text)
            if found:
                self._take(found[0])
        return at

    def _take(self, mark: str) -> None:
        if self._next is _ESCAPED:
            self._next = _IN_STRING
            return
        match mark:
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
    """Brackets with strings in them, whose quotation marks are these; one character's may be escaped."""

    def __init__(self, quotes: tuple[str, ...], depth: int) -> None:
        """depth: brackets that are open."""
        self.done = False
        self._depth = depth
        self._quote = ""
        marks = "|".join(map(re.escape, quotes))
        self._outside = re.compile(rf"{marks}|[{{}}\[\]()]")
        self._inside = {
            q: re.compile(rf"{re.escape(q)}|\\." if len(q) == 1 else re.escape(q), re.DOTALL) for q in quotes
        }
        self._longest = max(map(len, quotes))

    def scan(self, text: str, at: int) -> int:
        """Go on from `at`, where the last scan ended. Returns how far it got: marks that are not whole yet
        are left."""
        while not self.done:
            looked = self._inside[self._quote] if self._quote else self._outside
            found = looked.search(text, at)
            if found is None:
                kept = self._longest - 1 if self._longest > 1 else text.endswith("\\")
                return max(at, len(text) - kept)
            at = found.end()
            self._take(found[0])
        return at

    def _take(self, mark: str) -> None:
        if self._quote:
            self._quote = "" if mark == self._quote else self._quote
        elif mark in self._inside:
            self._quote = mark
        else:
            self._depth += 1 if mark in "([{" else -1
            self.done = self._depth <= 0
