"""Times of steps and guesses, measured on real machines, for programs under a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's times in milliseconds."""

    curve: Mapping[int, float]  # a step, by its rows
    td: float  # one guess
    row: float  # each further row of a draft model's decode

    def step_s(self, n: int) -> float:
        """Return the seconds of a step of n rows. Beyond the widest known step, extend the last slope."""
        known = sorted(self.curve)
        slope = (self.curve[known[-1]] - self.curve[known[-2]]) / (known[-1] - known[-2])
        beyond = max(0, n - known[-1]) * slope
        return (float(np.interp(n, known, [self.curve[rows] for rows in known])) + beyond) / 1e3


# SmolLM2-135M as Q4_0 and its small draft model, two threads of a busy Xeon with AVX-512: the shortest of 5
# decodes, as a start measures them. llama.cpp multiplies four rows at once, and the rest one by one
REPACKED = Machine(
    {1: 12.24, 2: 15.33, 3: 17.59, 4: 17.26, 5: 22.25, 6: 25.16, 7: 27.32, 8: 26.07, 9: 29.31}
    | {12: 33.22, 16: 37.43},
    0.4,
    0.1,
)

# Two threads of an EPYC, 150 tokens, without flash attention: as benchmarks.steps measures them, a tenth of a
# millisecond of Python added. 400M Q8_0: with flash attention, 60 tokens; llama.cpp has quicker code from 8
# rows on
MACHINES = {
    "400M BF16": Machine(
        {1: 28.9, 2: 44.9, 4: 55.4, 8: 69.8, 12: 85.8, 16: 101.0, 24: 130.5, 32: 159.6, 48: 220.2, 64: 255.0},
        0.65,
        0.09,
    ),
    "400M Q8_0": Machine(
        {1: 14.0, 2: 37.7, 3: 46.4, 4: 54.0, 6: 65.5, 7: 69.5, 8: 52.9, 12: 66.0, 15: 82.3, 16: 79.5}
        | {24: 110.5, 32: 141.4},
        0.65,
        0.09,
    ),
    "bundled": Machine(
        {1: 2.2, 2: 3.4, 4: 4.3, 8: 5.9, 12: 7.4, 16: 8.8, 24: 11.6, 32: 14.4, 48: 20.1, 64: 25.5}, 0.65, 0.09
    ),
    "SmolLM2 Q4_0": REPACKED,
}
