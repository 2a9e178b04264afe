"""When the tokens of a stream are told, so that it flows as evenly as without guesses. Pure.

A step with guesses brings several tokens at once and takes longer than one without: a burst and a pause. A
stream holds the tokens of a step that took longer than a frame and sends them one by one, at most a plain
step apart, within the time of HELD such steps. It sends the end of a reply at once. A frame is what a server
gathers tokens for before it tells any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from server.text.message import Piece

# Seconds of a frame where none is given: that of a screen, and of a CPU (GATHER_S in engine/thread.py). Half:
# twice the chunks; twice: the gaps of a model that makes 50 tokens per second show.
FRAME_S = 0.016
# Steps in whose time what waits is told. 95th percentile of gaps by that without guesses, two replies of 400M
# at once, BF16 and Q8_0 (benchmarks.inside): half, 1.66 and 1.88 instead of 1.54 and 1.72; twice, 1.44 and
# 1.66, but tokens are late by twice as much.
HELD = 2.0


class Pace:
    """Of one stream. Times in seconds: at by the engine's clock, now by the event loop's."""

    __slots__ = ("_at", "_every_s", "_frame_s", "_next_frame", "_step_s", "_told_at", "n_waiting")

    def __init__(self, frame_s: float = FRAME_S) -> None:
        """frame_s: between two portions at least; a step that takes no longer is told at once."""
        self._frame_s = frame_s
        self.n_waiting = 0  # tokens that are not told yet
        self._at = 0.0  # of the latest step
        self._step_s = 0.0
        self._every_s = 0.0  # between two tokens
        self._told_at = 0.0  # when the token told last was due
        self._next_frame = 0.0

    def spreads(self, n: int, at: float) -> bool:
        """Note that a step of n tokens has ended, and return whether they wait for their turn: step() is to
        follow then."""
        self._step_s, self._at = at - self._at if self._at else 0.0, at
        return self.n_waiting > 0 or (n > 1 and self._step_s > self._frame_s)

    def step(self, n: int, plain_s: float, now: float) -> None:
        """The step brought n tokens. plain_s: what it would have taken without guesses; 0: it had none."""
        was_empty = not self.n_waiting
        self.n_waiting += n
        if n == self.n_waiting == 1:
            self._every_s = 0.0
        elif self.n_waiting:
            self._every_s = min(plain_s or self._step_s, HELD * self._step_s / self.n_waiting)
        if was_empty:
            self._told_at = max(self._told_at, now - self._every_s)

    def due(self, now: float) -> int:
        """How many tokens are told now."""
        n, every_s = self.n_waiting, self._every_s
        if every_s:
            n = min(n, int((now - self._told_at) / every_s + 1e-6))
        if n <= 0:
            return 0
        self.n_waiting -= n
        self._told_at = self._told_at + n * every_s if every_s else now
        self._next_frame = now + self._frame_s
        return n

    @property
    def next_at(self) -> float | None:
        """When more are due, if nothing comes until then; None if none wait."""
        return max(self._next_frame, self._told_at + self._every_s) if self.n_waiting else None


_Held: TypeAlias = tuple[list[Piece], int]
"""Pieces of a token, and how many characters of the reply are settled with it."""


class Untold:
    """Pieces of a reply that are not told yet. pace: when those of a step with several tokens are told;
    None: at once."""

    def __init__(self) -> None:
        self.pace: Pace | None = None
        self._due: list[Piece] = []
        self._held: deque[_Held] = deque()
        self._n_settled = 0  # characters before the first token that is held

    @property
    def pieces(self) -> list[Piece]:
        return [*self._due, *(piece for pieces, _ in self._held for piece in pieces)]

    @property
    def n_waiting(self) -> int:
        """Tokens that are not due."""
        return len(self._held)

    @property
    def next_at(self) -> float | None:
        """As Pace.next_at."""
        return self.pace.next_at if self.pace is not None else None

    def spreads(self, n: int, at: float) -> bool:
        """As Pace.spreads()."""
        return self.pace is not None and self.pace.spreads(n, at)

    def spread(self, n_settled: int, read: Sequence[_Held], plain_s: float, now: float) -> None:
        """The tokens of a step, after n_settled characters of the reply. plain_s, now: as Pace.step() takes
        them."""
        if not self._held:
            self._n_settled = n_settled
        told = [held for held in read if held[0]]
        self._held += told
        if self.pace is not None:
            self.pace.step(len(told), plain_s, now)

    def add(self, pieces: Sequence[Piece]) -> None:
        """More, which waits for nothing but what is before it."""
        if self._held:
            self._held[-1][0].extend(pieces)
        else:
            self._due += pieces

    def take(self, n_settled: int, now: float, *, ends: bool) -> tuple[list[Piece], int]:
        """What is told now, and how many of n_settled characters are settled with it. ends: all of it."""
        n_due = len(self._held) if ends or self.pace is None else self.pace.due(now)
        for _ in range(n_due):
            pieces, self._n_settled = self._held.popleft()
            self._due += pieces
        told, self._due = self._due, []
        return told, self._n_settled if self._held else n_settled
