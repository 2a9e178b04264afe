"""End a text at the first line with too little indentation. Pure."""

from __future__ import annotations

import re


class Indentation:
    """Ends a text before a line, other than the first, that begins with fewer than `least` spaces or tabs."""

    def __init__(self, least: int) -> None:
        self._too_little = re.compile(rf"\n[ \t]{{0,{least - 1}}}(?=[^ \t])") if least else None
        # the last line break and the white space after it, held back because more white space may follow
        self._open = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Add text; return the part that may be sent, and True if the text ends there."""
        if self._too_little is None:
            return text, False
        whole = self._open + text
        if (found := self._too_little.search(whole)) is not None:
            return whole[len(self._open) : found.end()], True
        begin = whole.rfind("\n")
        self._open = whole[begin:] if begin >= 0 and not whole[begin:].strip(" \t\n") else ""
        return text, False
