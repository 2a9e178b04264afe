"""Does a sample come from a distribution? Pearson's test without a library."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UNLIKELY = 4.0
"""Standard deviations: a true sample is beyond this once in 30,000 tests (and seeds are fixed)."""


def deviation(counts: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Return by how many standard deviations the statistic exceeds that of a true sample.

    By Wilson and Hilferty's cube-root approximation; infinite where something impossible was counted. Cells
    with fewer than 8 expected are pooled.
    """
    seen = np.asarray(counts, np.float64).ravel()
    expected = np.asarray(probabilities, np.float64).ravel() * seen.sum()
    if seen[expected == 0.0].any():
        return float("inf")
    large = expected >= 8.0
    seen = np.append(seen[large], seen[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    seen, expected = seen[expected > 0.0], expected[expected > 0.0]
    degrees = len(expected) - 1
    if degrees == 0:
        return 0.0
    statistic = float(((seen - expected) ** 2 / expected).sum())
    spread = 2.0 / (9.0 * degrees)
    return ((statistic / degrees) ** (1.0 / 3.0) - (1.0 - spread)) / spread**0.5
