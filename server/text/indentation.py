"""Where a text ends because a line is indented too little. Pure; ReplyText feeds it."""

from __future__ import annotations

import re


class Indentation:
    """Ends a text before a line, other than its first, that begins with fewer than `least` spaces or tabs."""

    def __init__(self, least: int) -> None:
        self._too_little = re.compile(rf"\n[ \t]{{0,{least - 1}}}(?=[^ \t])") if least else None
        self._open = ""  # the text's end, if it may be too little: a line break and what follows of spaces

    def feed(self, text: str) -> tuple[str, bool]:
        """Add text; returns what may be sent of it, and whether the text ends there."""
        if self._too_little is None:
            return text, False
        whole = self._open + text
        if (found := self._too_little.search(whole)) is not None:
            return whole[len(self._open) : found.end()], True
        begin = whole.rfind("\n")
        self._open = whole[begin:] if begin >= 0 and not whole[begin:].strip(" \t\n") else ""
        return text, False
