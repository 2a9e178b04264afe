"""Stop strings over a growing text: what may be sent, and where it ends. Pure; ReplyText feeds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class StopStrings:
    """Holds back the end of the text as long as it may still become a stop string. found: the one that has
    become complete."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._by_first = _by_first(self._stops)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> tuple[str, bool]:
        """Add text; returns what may be sent now, and whether a stop string is complete. The stop string
        that ends first wins, the longest if several end there; neither it nor what follows is sent."""
        if not self._stops:
            return text, False
        self._held += text
        ends = [(at + len(s), at, s) for s in self._stops if (at := self._held.find(s)) >= 0]
        if ends:
            self.found = min(ends)[2]
        at = min(ends)[1] if ends else len(self._held) - _n_unfinished(self._held, self._by_first)
        sent, self._held = self._held[:at], "" if ends else self._held[at:]
        return sent, bool(ends)

    def flush(self) -> str:
        """What was held back: the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held


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
