"""Finds the end of a JSON value in a growing text. Pure.

Reads brackets and quotation marks only: the text between them need not be valid JSON."""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,}\]]")


class ValueScanner:
    """Scans one value: an object, an array, a string, or a word."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False
        self._word = False

    def scan(self, text: str, at: int) -> int:
        """Continue at `at`, where the last scan ended; no white space before the value. Returns the end of
        the value, or of the text while not `done`."""
        if not self._begun and at < len(text):
            self._begun = True
            self._word = text[at] not in '{["'
        while at < len(text) and not self.done:
            if self._word:
                at = self._scan_word(text, at)
            elif self._in_string:
                at = self._scan_string(text, at)
            else:
                at = self._scan_structure(text, at)
        return at

    def _scan_word(self, text: str, at: int) -> int:
        found = _SCALAR_END.search(text, at)
        self.done = found is not None
        return found.start() if found else len(text)

    def _scan_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(text, at)
        if found is None:
            return len(text)
        if found[0] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.done = not self._depth
        return found.end()

    def _scan_structure(self, text: str, at: int) -> int:
        found = _STRUCTURE.search(text, at)
        if found is None:
            return len(text)
        match found[0]:
            case '"':
                self._in_string = True
            case "{" | "[":
                self._depth += 1
            case _:
                self._depth -= 1
                self.done = self._depth <= 0
        return found.end()
