"""Extract the input of a custom tool from the arguments of the function that represents it. Pure."""

from __future__ import annotations

import json
import re
from typing import cast

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAY_BEGIN = re.compile(r'\s*(\{\s*("(i(n(p(u(t("\s*(:\s*)?)?)?)?)?)?)?)?)?')
_WHOLE = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")


class InputReader:
    """Reads `{"input": "…"}` piece by piece. end() returns arguments of another form unchanged."""

    def __init__(self) -> None:
        self._unread = ""
        self._begun = self._ended = False

    def feed(self, arguments: str) -> str:
        """Take the next part of the arguments, and return the part of the input that it contains."""
        self._unread += arguments
        if not self._begun:
            if (begin := _BEGIN.match(self._unread)) is None:
                return ""
            self._begun, self._unread = True, self._unread[begin.end() :]
        if self._ended:
            return ""
        known = _WHOLE.match(self._unread)
        assert known
        text = _HALF_PAIR.sub("", known[0])
        self._unread = self._unread[len(text) :]
        self._ended = self._unread.startswith('"')
        told: str = json.loads(f'"{text}"', strict=False)
        return told.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # U+FFFD for half a pair

    def end(self) -> str:
        """Return the rest of the input, once the arguments have ended.

        Return arguments without `input` unchanged. Return "" if they end before the value of `input` begins.
        """
        rest, self._unread = self._unread, ""
        if self._begun or _MAY_BEGIN.fullmatch(rest):
            return ""
        try:
            given = json.loads(rest)
        except ValueError:
            return rest
        found = cast(dict[str, object], given).get("input") if isinstance(given, dict) else None
        return found if isinstance(found, str) else rest


def input_of(arguments: str) -> str:
    """Return a custom tool's input, given all arguments of its function."""
    reader = InputReader()
    return reader.feed(arguments) + reader.end()
