"""What steps and guesses take on machines whose times were measured, for programs under a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Machine:
    """What it takes, in milliseconds. curve: a step by its rows; td: one guess; row: a row more of the draft
    model."""

    curve: Mapping[int, float]
    td: float
    row: float

    def step_s(self, n: int) -> float:
        """Beyond the widest known step, a row takes what those before it take."""
        known = sorted(self.curve)
        slope = (self.curve[known[-1]] - self.curve[known[-2]]) / (known[-1] - known[-2])
        beyond = max(0, n - known[-1]) * slope
        return (float(np.interp(n, known, [self.curve[rows] for rows in known])) + beyond) / 1e3


# Two threads, a short context: as benchmarks.steps measures them, a tenth of a millisecond of Python added
MACHINES = {
    "400M BF16": Machine({1: 24.6, 2: 43.1, 4: 56.8, 5: 63.0, 8: 78.7, 9: 83.6, 16: 125.2}, 1.7, 0.17),
    "bundled": Machine({1: 1.15, 2: 1.5, 4: 2.0, 8: 3.2, 16: 5.7}, 0.35, 0.07),
}
