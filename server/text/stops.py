"""Finds stop strings in a growing text. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds back the end of the text while it may become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may be sent, and whether a stop string is complete: the one that ends first, the
        longest if several end there. It and later text are not sent."""
        if not self._stops:
            return text, False
        self._held += text
        ends = [(at + len(s), at) for s in self._stops if (at := self._held.find(s)) >= 0]
        if ends:
            _, at = min(ends)
            sent, self._held = self._held[:at], ""
            return sent, True
        keep = self._possible()
        sent, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return sent, False

    def flush(self) -> str:
        """What was held back, when the text ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _possible(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for n in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[-n:]
            if any(stop.startswith(tail) for stop in self._stops):
                return n
        return 0
