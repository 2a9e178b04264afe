"""Learn, from every step, the seconds to evaluate a token and to move a conversation. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from server.cache.catalogue import Found
from server.estimators import N_MOMENTS, Slope, Smoothed, numbers

WEIGHT = 0.2
"""Weight of a new measurement.

An initial value ten times too high comes within a quarter of the true value after 17 measurements. At 0.4
it needs 8, but then a single disturbed step makes duo evaluate conversations that it should load; at 0.1 it
needs 35.
"""
# One move's time per byte counts as at most this multiple of the current estimate. Otherwise a process that
# was suspended for a minute during a save would never save again, since only moves correct the estimate.
# Half: a tenfold slowdown is known after 12 moves instead of 7; twice: one such pause makes moving look 2.4
# times as slow, not 1.6.
MAX_BYTE_RATIO = 4.0
# Share of its weight that a measured step keeps with each later one: about the last 50 count. If steps
# scatter by 3 percent, a slope learned from one reply has a relative error of 0.9 (simulated). With 25 steps
# the error is 2; with 100 it is 0.45, but a slowdown of the machine is noticed after 100 steps.
STEPS_KEPT = 0.98
REPLY = 64  # assumed steps of a reply. Twice: idle conversations leave at half the extra time per step
FORM = 1.0  # version of the numbers that memory() returns
LONGEST_S, SLOWEST_S = 60.0, 1e-3  # maximum seconds of a token or step, and of a byte, that recall() accepts


class MoveCosts:
    """Learned costs: per evaluated token, per occupied KV cell, per byte moved between cache tiers."""

    def __init__(self) -> None:
        self.token_s = Smoothed(WEIGHT, 0.001)  # initially 1,000 prompt tokens per second
        self.byte_s = Smoothed(WEIGHT, 1e-9)  # initially 1 GB/s
        self.cell_bytes = 0.0  # 0: not known yet
        self._token = Slope(STEPS_KEPT)  # seconds of a prompt token, as a function of cells in use
        self._step = Slope(STEPS_KEPT)  # seconds of a step without prompt rows, as a function of cells

    def evaluated(self, n_tokens: int, seconds: float, n_cells: int) -> None:
        """Learn the seconds per token from a step that evaluated n_tokens of prompts.

        Before the step n_cells cells of the KV cache were in use.
        """
        token_s = seconds / n_tokens
        self.token_s.observe(token_s)
        self._token.observe(n_cells, token_s)

    def stepped(self, seconds: float, n_cells: int) -> None:
        """Learn the seconds of a step without prompt rows, with n_cells cells in use."""
        self._step.observe(n_cells, seconds)

    def moved(self, n_bytes: int, n_tokens: int, seconds: float) -> None:
        """Learn the seconds per byte from a move of n_tokens tokens, in n_bytes, to or from the KV cache."""
        self.cell_bytes = n_bytes / n_tokens
        self.byte_s.observe(min(seconds / n_bytes, MAX_BYTE_RATIO * self.byte_s.value))

    def loading_pays(self, found: Found, n_resident: int) -> bool:
        """Return True if loading a snapshot is faster than evaluating the prompt tokens that it adds.

        Args:
            found: The snapshot.
            n_resident: Prompt tokens that are in the KV cache already.
        """
        return (found.length - n_resident) * self.token_s.value > found.n_bytes * self.byte_s.value

    @property
    def copying_pays(self) -> bool:
        """True if loading a copy made in idle time is faster than evaluating the conversation again."""
        return self.cell_bytes * self.byte_s.value < self.token_s.value

    @property
    def saving_pays(self) -> bool:
        """True if saving a conversation and loading it takes less time than evaluating it again.

        Often False on a GPU with many streams: prompts are quick, but scattered cells are copied one by one.
        """
        return 2 * self.cell_bytes * self.byte_s.value < self.token_s.value

    def leaving_pays(self, n_tokens: int, n_moves: int) -> bool:
        """Return True if an idle conversation should leave the KV cache for a prompt of n_tokens.

        Compares two times for a cell of the conversation: the seconds that it adds to the steps of the prompt
        and its reply; and the seconds to move it n_moves times, or to evaluate it again if that is less.

        Args:
            n_tokens: Tokens of the prompt.
            n_moves: 2 if the conversation has to be saved and loaded; 1 if it is saved already.
        """
        slower_s = self._token.value * n_tokens + self._step.value * REPLY
        return slower_s > min(n_moves * self.cell_bytes * self.byte_s.value, self.token_s.value)

    def memory(self) -> list[float]:
        """Return the learned values for recall() after a restart."""
        known = [self.token_s.value, self.byte_s.value, self.cell_bytes]
        return [FORM, *known, *self._token.moments, *self._step.moments]

    def recall(self, memory: object) -> bool:
        """Continue with what memory() returned; return False and change nothing if it is not plausible."""
        known = numbers(memory)
        if len(known) != 4 + 2 * N_MOMENTS or known[0] != FORM or not all(known[1:3]):
            return False
        token, step = known[4 : 4 + N_MOMENTS], known[4 + N_MOMENTS :]
        if (
            not (_are_plausible(token) and _are_plausible(step))
            or known[1] > LONGEST_S
            or known[2] > SLOWEST_S
        ):
            return False
        self.token_s.value, self.byte_s.value, self.cell_bytes = known[1:4]
        self._token.moments, self._step.moments = token, step
        return True


def _are_plausible(moments: Sequence[float]) -> bool:
    """Return True if Slope.observe() could have produced these moments.

    The weight is bounded, the square of the mean is at most the mean of squares, and no sample took longer
    than LONGEST_S.
    """
    weight, x, y, xx, xy = moments
    bounded = weight * (1 - STEPS_KEPT) < 1.001 and y <= LONGEST_S * weight and xy <= LONGEST_S * x
    return bounded and x * x <= 1.001 * weight * xx
