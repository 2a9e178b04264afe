"""How fast the server is: tokens per second over the last steps. Pure."""

from __future__ import annotations

KEEP = 0.95  # of what the past weighs, per step


class Pace:
    """A rate that forgets: about the last twenty steps count."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        self._tokens = KEEP * self._tokens + tokens
        self._seconds = KEEP * self._seconds + seconds

    @property
    def rate(self) -> float:
        """Tokens per second, 0 before the first observation."""
        return self._tokens / self._seconds if self._seconds > 0.0 else 0.0
