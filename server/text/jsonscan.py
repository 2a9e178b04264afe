"""Where a JSON value ends in a text that is still growing. Pure.

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
