"""Speed-ups under a virtual clock beside those of the formulas, over a grid of (a, r, latency)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import report, virtual
from benchmarks.formulas import Scheme, speedup

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SPEEDS = (2, 4, 8, 12, 20)
LATENCIES = (0.0, 0.5, 1.0, 2.0)
SHOWN = 0.8  # acceptance of the table's figures; its last column counts all
K_MAX = 128  # drafted tokens that a step may verify: more than ever arrive
RUNS, TOKENS = 300, 1500  # least runs between mismatches, and least tokens, of a measured text

_plain = functools.cache(virtual.plain)


@dataclass(frozen=True, slots=True)
class Point:
    scheme: Scheme
    measured: float
    expected: float

    @property
    def error(self) -> float:
        """Relative, of the measured value."""
        return self.measured / self.expected - 1

    def __str__(self) -> str:
        s = self.scheme
        values = f"{self.measured:6.3f}, formula {self.expected:6.3f} ({100 * self.error:+.1f} %)"
        return f"a {s.a:.2f}  r {s.r:4.0f}  L {s.latency:.1f}: {values}"


def measured(scheme: Scheme) -> float:
    """The speed-up over a text long enough for RUNS runs."""
    return virtual.speedup(scheme, _plain(max(TOKENS, round(RUNS / (1 - scheme.a)))))


def measure(every: int) -> list[Point]:
    """Every n-th point of the grid, verifying at no cost. Prints each."""
    points: list[Point] = []
    for latency, a, r in list(itertools.product(LATENCIES, ACCEPTANCES, SPEEDS))[::every]:
        scheme = Scheme(a, r, latency, k_max=K_MAX)
        points.append(Point(scheme, measured(scheme), speedup(scheme)))
        print(points[-1], flush=True)
    return points


def worst(points: Sequence[Point]) -> Point:
    return max(points, key=lambda point: abs(point.error))


def table(points: Sequence[Point]) -> str:
    """Markdown: a line for each latency, measured (formula) by r at a = SHOWN, or at the first a there, and
    the largest relative error over all a and r."""
    rows: list[list[str]] = []
    for latency in sorted({point.scheme.latency for point in points}):
        group = [point for point in points if point.scheme.latency == latency]
        a = SHOWN if any(p.scheme.a == SHOWN for p in group) else group[0].scheme.a
        found = {p.scheme.r: f"{p.measured:.2f} ({p.expected:.2f})" for p in group if p.scheme.a == a}
        cells = [found.get(r, "-") for r in SPEEDS]
        rows.append([f"{latency:g}", f"{a:g}", *cells, f"{100 * worst(group).error:+.1f} %"])
    heads = ["L / tt", "a", *(f"r = {r}" for r in SPEEDS), "largest error, all a"]
    return report.table(heads, rows, n_words=0)


def summary(points: Sequence[Point]) -> str:
    """One sentence."""
    errors = sorted(abs(point.error) for point in points)
    return (
        f"{len(points)} points: relative error {100 * errors[len(errors) // 2]:.1f} % in the median, "
        f"{100 * errors[-1]:.1f} % at most ({worst(points)})."
    )
