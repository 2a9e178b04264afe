"""Chance with little noise: each value comes as often as it should, only their order is drawn.

A few hundred independent runs between mismatches leave an error of some per cent in a measured speed-up, too
much to tell whether a formula holds. Runs whose lengths are the quantiles of their distribution, shuffled,
leave a tenth of that.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

BLOCK = 200  # run lengths among which the shares are kept
FEW = 20  # choices, likewise


def gaps(a: float, rng: random.Random) -> Iterator[int]:
    """Endless: how many guesses are right before the next wrong one, each being right with probability a."""
    while True:
        block = [math.floor(math.log((i + 0.5) / BLOCK) / math.log(a)) for i in range(BLOCK)]
        # Quantiles at the middle of each share miss a little of the long tail; the last one makes up for it
        block[0] += round(BLOCK * a / (1 - a)) - sum(block)
        rng.shuffle(block)
        yield from block


def choices(p: float, rng: random.Random) -> Iterator[bool]:
    """Endless: True with probability p."""
    owed = 0.0
    while True:
        owed += p * FEW
        n = math.floor(owed + 1e-9)
        owed -= n
        block = [True] * n + [False] * (FEW - n)
        rng.shuffle(block)
        yield from block
