"""Find stop strings in a growing text, and decide how much of the text may be emitted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.text.guard import GUARD, begun, unguarded


class StopStrings:
    """Searches for stop strings in text that has not been emitted yet."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._by_first = _by_first(self._stops)
        self.found: str | None = None  # the stop string that ended the text

    def __bool__(self) -> bool:
        return bool(self._stops)

    def n_emittable(self, text: str, *, whole: bool) -> int:
        """Return how many characters of the text may be emitted; set `found` if a stop string ends the text.

        `found` is the stop string that ends first; if several end there, the longest. Text that may still
        become a stop string is held back.

        Args:
            text: Guarded text that has not been emitted yet.
            whole: True if no text follows that could complete a stop string.
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


def n_unfinished(text: str, markers: Sequence[str]) -> int:
    """Return how many characters at the end of `text` may begin a marker.

    `text` must not contain a whole marker.
    """
    return _n_unfinished(text, _by_first(markers))


def _by_first(markers: Sequence[str]) -> dict[str, list[str]]:
    """Group the markers by their first character, the longest first."""
    found: dict[str, list[str]] = {}
    for marker in sorted(markers, key=len, reverse=True):
        found.setdefault(marker[0], []).append(marker)
    return found


def _n_unfinished(text: str, by_first: Mapping[str, Sequence[str]]) -> int:
    most = max((len(markers[0]) for markers in by_first.values()), default=1) - 1
    for at in range(max(0, len(text) - most), len(text)):
        if any(marker.startswith(text[at:]) for marker in by_first.get(text[at], ())):
            return len(text) - at
    return 0
