"""What evaluating a token and moving a conversation take on this machine, learned from every step. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from server.cache.snapshots import Found
from server.estimators import N_MOMENTS, Slope

# Of a measured time. Off by two: twice, one disturbed step has conversations evaluated that should be loaded;
# half, a start value counts for ten moves.
WEIGHT = 0.2
# Of the past, per measured step: about the last 50 count. Off by two: 25, a line through steps of like
# contexts is steep by luck; 100, a slower machine shows after as many steps.
KEEP = 0.98
REPLY = 64  # steps that a reply is taken to have
FORM = 1.0  # of memory(): numbers of another one may mean something else
LONGEST_S, SLOWEST_S = 60.0, 1e-3  # of a token or a step, and of a byte: more is not believed


class Pace:
    """What evaluating a token, a cell in use beside it, and moving a byte take here. Pure."""

    def __init__(self) -> None:
        self.token_s = 0.001  # before anything was measured: a slow model,
        self.byte_s = 1e-9  # 1 GB/s,
        self.cell_bytes = 0.0  # and nothing that would have to move
        self._token = Slope(KEEP)  # seconds of a prompt's token, by cells in use
        self._step = Slope(KEEP)  # of a step without a prompt

    def evaluated(self, n_tokens: int, seconds: float, n_cells: int) -> None:
        """A step of prompt rows, with so many cells in use."""
        token_s = seconds / n_tokens
        self.token_s += WEIGHT * (token_s - self.token_s)
        self._token.observe(n_cells, token_s)

    def stepped(self, seconds: float, n_cells: int) -> None:
        """A step of a reply, likewise."""
        self._step.observe(n_cells, seconds)

    def moved(self, n_bytes: int, n_tokens: int, seconds: float) -> None:
        """A state of so many tokens, into the KV cache or out of it."""
        self.cell_bytes = n_bytes / n_tokens
        self.byte_s += WEIGHT * (seconds / n_bytes - self.byte_s)

    def loading_pays(self, found: Found, n_resident: int) -> bool:
        """Whether a snapshot is worth loading where so many tokens are in the KV cache already."""
        return (found.length - n_resident) * self.token_s > found.n_bytes * self.byte_s

    def leaving_pays(self, n_tokens: int, n_moves: int) -> bool:
        """Whether whoever rests in the KV cache should leave it while so many tokens are evaluated and a
        reply is made: each of their cells slows that down, and takes a while to move. n_moves: 2, to be saved
        and to be loaded again; 1 where the former is done."""
        slower_s = self._token.value * n_tokens + self._step.value * REPLY
        return slower_s > n_moves * self.cell_bytes * self.byte_s

    def memory(self) -> list[float]:
        """All that was learned, to be kept over a restart."""
        known = [self.token_s, self.byte_s, self.cell_bytes]
        return [FORM, *known, *self._token.moments, *self._step.moments]

    def recall(self, memory: object) -> bool:
        """Go on from what memory() gave, on this machine and for this model. Returns whether it could be
        believed; if not nothing changes."""
        numbers = _numbers(memory)
        if len(numbers) != 4 + 2 * N_MOMENTS or numbers[0] != FORM or not all(numbers[1:3]):
            return False
        token, step = numbers[4 : 4 + N_MOMENTS], numbers[4 + N_MOMENTS :]
        if not (_plausible(token) and _plausible(step)) or numbers[1] > LONGEST_S or numbers[2] > SLOWEST_S:
            return False
        self.token_s, self.byte_s, self.cell_bytes = numbers[1:4]
        self._token.moments, self._step.moments = token, step
        return True


def _numbers(memory: object) -> list[float]:
    """Finite and not negative, all of them; else none."""
    numbers = cast(list[Any], memory) if isinstance(memory, list) else []
    good = all(isinstance(number, float) and math.isfinite(number) and number >= 0 for number in numbers)
    return numbers if good else []


def _plausible(moments: Sequence[float]) -> bool:
    """Whether observe() may have given them: weights are bounded, no square of a mean is greater than the
    mean of squares, and nothing takes longer than LONGEST_S."""
    weight, x, y, xx, xy = moments
    bounded = weight * (1 - KEEP) < 1.001 and y <= LONGEST_S * weight and xy <= LONGEST_S * x
    return bounded and x * x <= 1.001 * weight * xx
