"""Stop strings in a growing text: how much of it may be told, and where it ends. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.text.guard import GUARD, begun, unguarded


class StopStrings:
    """Looks for stop strings in text that has not been told yet."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._by_first = _by_first(self._stops)
        self.found: str | None = None  # the one that has become complete

    def __bool__(self) -> bool:
        return bool(self._stops)

    def n_tellable(self, text: str, *, whole: bool) -> int:
        """Return how many characters of the text may be told; `found` then tells whether it ends there.

        The stop string that ends first wins, the longest if several end there. Text that may still become one
        is held back.

        Args:
            text: Guarded text, from the first character on that has not been told.
            whole: Nothing follows that a stop string could go on with.
        """
        if not self._stops:
            return len(text)
        plain = unguarded(text) if GUARD in text else text
        ends = [(at + len(s), at, s) for s in self._stops if (at := plain.find(s)) >= 0]
        if ends:
            _, n, self.found = min(ends)
        else:
            n = len(plain) - (0 if whole else _n_unfinished(plain, self._by_first))
        return n if plain is text else len(begun(text, n))


def n_unfinished(text: str, marks: Sequence[str]) -> int:
    """Return how many characters at the text's end may become a mark; the text contains no whole one."""
    return _n_unfinished(text, _by_first(marks))


def _by_first(marks: Sequence[str]) -> dict[str, list[str]]:
    """Return the marks by their first character, the longest first."""
    found: dict[str, list[str]] = {}
    for mark in sorted(marks, key=len, reverse=True):
        found.setdefault(mark[0], []).append(mark)
    return found


def _n_unfinished(text: str, by_first: Mapping[str, Sequence[str]]) -> int:
    most = max((len(marks[0]) for marks in by_first.values()), default=1) - 1
    for at in range(max(0, len(text) - most), len(text)):
        if any(mark.startswith(text[at:]) for mark in by_first.get(text[at], ())):
            return len(text) - at
    return 0
