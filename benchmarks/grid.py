"""Measured speed-ups beside those of the formulas, over a grid of (a, r, latency, h)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks import report
from benchmarks.formulas import Scheme, speedup

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SPEEDS = (2, 4, 8, 12, 20)
LATENCIES = (0.0, 0.5, 1.0, 2.0)
HITS = (0.0, 0.5, 0.8, 1.0)
SHOWN = 0.8  # acceptance of the table's figures; its last column counts all
K_MAX = 128  # drafted tokens that a step may verify: more than ever arrive
RUNS, TOKENS = 300, 1500  # least runs between mismatches, and least tokens, of a measured text

Measure: TypeAlias = Callable[[Scheme, int], float]
"""The speed-up of a scheme over a text of this many tokens."""


@dataclass(frozen=True, slots=True)
class Point:
    scheme: Scheme
    measured: float
    expected: float

    @property
    def error(self) -> float:
        """Relative, of the measured value."""
        return self.measured / self.expected - 1


def schemes(hits: Sequence[float] = HITS) -> list[Scheme]:
    """The grid, verifying at no cost."""
    grid = itertools.product(LATENCIES, hits, ACCEPTANCES, SPEEDS)
    return [Scheme(a, r, latency, h, k_max=K_MAX) for latency, h, a, r in grid]


def n_tokens(a: float) -> int:
    """A text long enough for RUNS runs."""
    return max(TOKENS, round(RUNS / (1 - a)))


def measure(grid: Iterable[Scheme], speed: Measure) -> list[Point]:
    """Prints each point."""
    points: list[Point] = []
    for scheme in grid:
        points.append(Point(scheme, speed(scheme, n_tokens(scheme.a)), speedup(scheme)))
        print(point_line(points[-1]), flush=True)
    return points


def worst(points: Sequence[Point]) -> Point:
    return max(points, key=lambda point: abs(point.error))


def point_line(point: Point) -> str:
    s = point.scheme
    return (
        f"a {s.a:.2f}  r {s.r:4.0f}  L {s.latency:.1f}  h {s.h:.1f}: "
        f"{point.measured:6.3f}, formula {point.expected:6.3f} ({100 * point.error:+.1f} %)"
    )


def table(points: Sequence[Point]) -> str:
    """Markdown: a line for each (latency, h), measured (formula) by r at a = SHOWN, or at the first a there,
    and the largest relative error over all a and r."""
    speeds = sorted({point.scheme.r for point in points})
    groups: dict[tuple[float, float], list[Point]] = {}
    for point in points:
        groups.setdefault((point.scheme.latency, point.scheme.h), []).append(point)
    rows: list[list[str]] = []
    for (latency, h), group in groups.items():
        a = SHOWN if any(p.scheme.a == SHOWN for p in group) else group[0].scheme.a
        found = {p.scheme.r: f"{p.measured:.2f} ({p.expected:.2f})" for p in group if p.scheme.a == a}
        cells = [found.get(r, "-") for r in speeds]
        rows.append([f"{latency:g}", f"{h:g}", f"{a:g}", *cells, f"{100 * worst(group).error:+.1f} %"])
    heads = ["L / tt", "h", "a", *(f"r = {r:.0f}" for r in speeds), "largest error, all a"]
    return report.table(heads, rows, n_words=0)


def summary(points: Sequence[Point]) -> str:
    """One sentence."""
    errors = sorted(abs(point.error) for point in points)
    return (
        f"{len(points)} points: relative error {100 * errors[len(errors) // 2]:.1f} % in the median, "
        f"{100 * errors[-1]:.1f} % at most ({point_line(worst(points))})."
    )
