"""Decide when the tokens of a stream are sent, so that it flows as evenly as without drafts. Pure.

A step with accepted guesses commits several tokens at once and takes longer than a step without guesses, so
the stream would alternate between bursts and pauses. A frame is the time for which the server gathers tokens
before it sends them. If a step took longer than a frame, its tokens are sent one by one: at intervals of at
most the time of an undrafted step, and all within HELD times the step's own time. The end of a reply is sent
at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from server.text.message import Piece

FRAME_S = 0.016
"""Default seconds of a frame: one screen refresh, and GATHER_S on a CPU (engine/thread.py).

Half: twice as many chunks. Twice: gaps are visible at 50 tokens per second.
"""
HELD = 2.0
"""All waiting tokens are sent within this number times the duration of the latest step.

The 95th percentile of gaps, relative to the one without guesses, is 1.54 and 1.72 (benchmarks.inside: two
concurrent replies of a 400M model, BF16 and Q8_0). Half: 1.66 and 1.88. Twice: 1.44 and 1.66, but tokens are
twice as late.
"""


class Pace:
    """Decides when the tokens of one stream are sent, so that the stream is even.

    Times are in seconds: `at` by the engine's clock, `now` by the event loop's.
    """

    __slots__ = ("_at", "_every_s", "_frame_s", "_next_frame", "_sent_at", "_step_s", "n_waiting")

    def __init__(self, frame_s: float = FRAME_S) -> None:
        """Begin a stream. frame_s: least seconds between two portions; only longer steps are spread."""
        self._frame_s = frame_s
        self.n_waiting = 0  # number of tokens that are not sent yet
        self._at = 0.0  # time of the latest step
        self._step_s = 0.0
        self._every_s = 0.0  # seconds between two tokens
        self._sent_at = 0.0  # time at which the last sent token was due
        self._next_frame = 0.0

    def spreads(self, n: int, at: float) -> bool:
        """Note the end of a step of n tokens; return True if they have to wait. If so, call step()."""
        self._step_s, self._at = at - self._at if self._at else 0.0, at
        return self.n_waiting > 0 or (n > 1 and self._step_s > self._frame_s)

    def step(self, n: int, undrafted_s: float, now: float) -> None:
        """Add the n tokens of a step to those that wait to be sent.

        Args:
            n: Number of tokens.
            undrafted_s: Estimated seconds of the step without its guesses; 0: it had no guesses.
            now: Time by the event loop.
        """
        was_empty = not self.n_waiting
        self.n_waiting += n
        if n == self.n_waiting == 1:
            self._every_s = 0.0
        elif self.n_waiting:
            self._every_s = min(undrafted_s or self._step_s, HELD * self._step_s / self.n_waiting)
        if was_empty:
            self._sent_at = max(self._sent_at, now - self._every_s)

    def due(self, now: float) -> int:
        """Take the tokens that are due now, and return their number."""
        n, every_s = self.n_waiting, self._every_s
        if every_s:
            n = min(n, int((now - self._sent_at) / every_s + 1e-6))
        if n <= 0:
            return 0
        self.n_waiting -= n
        self._sent_at = self._sent_at + n * every_s if every_s else now
        self._next_frame = now + self._frame_s
        return n

    @property
    def next_at(self) -> float | None:
        """Return the time when more tokens are due, by the event loop's clock; None if none wait."""
        return max(self._next_frame, self._sent_at + self._every_s) if self.n_waiting else None


_Held: TypeAlias = tuple[list[Piece], int]
"""Pieces of a token, and the number of the reply's parsed characters after the token."""


class UnsentPieces:
    """Pieces of a reply that are not sent yet."""

    def __init__(self) -> None:
        self.pace: Pace | None = None
        self._due: list[Piece] = []
        self._held: deque[_Held] = deque()
        self._n_parsed = 0  # parsed characters before the first waiting token

    @property
    def pieces(self) -> list[Piece]:
        return [*self._due, *(piece for pieces, _ in self._held for piece in pieces)]

    @property
    def n_waiting(self) -> int:
        """Return the number of tokens that are not due yet."""
        return len(self._held)

    @property
    def next_at(self) -> float | None:
        """Return the event loop's time when the next token is due; None if none waits or there is no pace."""
        return self.pace.next_at if self.pace is not None else None

    def spreads(self, n: int, at: float) -> bool:
        """Note the end of a step, as Pace.spreads() does. Return False without a pace."""
        return self.pace is not None and self.pace.spreads(n, at)

    def spread(self, n_parsed: int, read: Sequence[_Held], undrafted_s: float, now: float) -> None:
        """Add the tokens of a step, to be sent one by one.

        Args:
            n_parsed: Number of the reply's characters that were parsed before the step.
            read: For each token, its pieces and n_parsed after it.
            undrafted_s: See Pace.step().
            now: See Pace.step().
        """
        if not self._held:
            self._n_parsed = n_parsed
        told = [held for held in read if held[0]]
        self._held += told
        if self.pace is not None:
            self.pace.step(len(told), undrafted_s, now)

    def add(self, pieces: Sequence[Piece]) -> None:
        """Add pieces that are sent as soon as all earlier pieces are sent."""
        if self._held:
            self._held[-1][0].extend(pieces)
        else:
            self._due += pieces

    def take(self, n_parsed: int, now: float, *, ends: bool) -> tuple[list[Piece], int]:
        """Take the pieces to be sent now, or all pieces if the reply `ends`.

        Args:
            n_parsed: Number of the reply's characters that were parsed so far.
            now: Time by the event loop.
            ends: True if the reply has ended.

        Returns:
            The pieces, and the number of the reply's parsed characters up to their end.
        """
        n_due = len(self._held) if ends or self.pace is None else self.pace.due(now)
        for _ in range(n_due):
            pieces, self._n_parsed = self._held.popleft()
            self._due += pieces
        told, self._due = self._due, []
        return told, self._n_parsed if self._held else n_parsed
