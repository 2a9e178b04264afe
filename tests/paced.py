"""A stream whose tokens are told as server/api/pacing.py says, at times of the caller's choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from server.api.pacing import Pace


@dataclass(slots=True)
class Stream:
    """A stream that emits tokens when they are due."""

    pace: Pace = field(default_factory=Pace)
    times: list[float] = field(default_factory=list[float])  # of each token

    def step(self, at: float, n: int, undrafted_s: float) -> None:
        """Bring n tokens at once."""
        self.pass_until(at)
        if self.pace.spreads(n, at):
            self.pace.step(n, undrafted_s, at)
            n = self.pace.due(at)
        self.times += [at] * n

    def pass_until(self, now: float) -> None:
        while (next_at := self.pace.next_at) is not None and next_at < now:
            self.times += [next_at] * self.pace.due(next_at)

    def end(self, at: float) -> None:
        """End the reply, which waits for nothing."""
        self.times += [at] * self.pace.n_waiting

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in pairwise(self.times)]
