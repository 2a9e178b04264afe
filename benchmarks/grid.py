"""A measured speed-up beside the formula's, over a grid of (a, r, latency, h)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.renewal import Scheme, speedup

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SPEEDS = (2, 4, 8, 12, 20)
LATENCIES = (0.0, 0.5, 1.0, 2.0)
HITS = (0.0, 0.5, 0.8, 1.0)
SHOWN = (0.6, 0.8, 0.95)  # acceptances of the table; the others count in its last column
K_MAX = 128  # drafted tokens a step may verify: no bound in effect
RUNS = 300  # between two mismatches, at least so many, and at least so many tokens:
TOKENS = 1500

Measure = Callable[[Scheme, int], float]
"""The speed-up of a scheme over a text of so many tokens."""


@dataclass(frozen=True, slots=True)
class Point:
    scheme: Scheme
    measured: float
    expected: float

    @property
    def error(self) -> float:
        """Relative, of the measured value."""
        return self.measured / self.expected - 1


def schemes() -> list[Scheme]:
    """The whole grid, verifying at no cost."""
    grid = itertools.product(LATENCIES, HITS, ACCEPTANCES, SPEEDS)
    return [Scheme(a, r, latency, h, k_max=K_MAX) for latency, h, a, r in grid]


def n_tokens(a: float) -> int:
    """A text long enough to measure at this acceptance: runs are longer where more is accepted."""
    return max(TOKENS, round(RUNS / (1 - a)))


def measure(
    grid: Iterable[Scheme], speed: Measure, on_point: Callable[[Point], None] = lambda point: None
) -> list[Point]:
    points: list[Point] = []
    for scheme in grid:
        points.append(Point(scheme, speed(scheme, n_tokens(scheme.a)), speedup(scheme)))
        on_point(points[-1])
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
    """Markdown: a line for each (latency, h, shown a), measured (formula) for each r, and the largest
    relative error of the line's (latency, h) over all a and r."""
    speeds = sorted({point.scheme.r for point in points})
    heads = [*(f"r = {r:.0f}" for r in speeds), "largest error, all a"]
    lines = [f"| L / tt | h | a | {' | '.join(heads)} |", "| ---: " * (3 + len(heads)) + "|"]
    groups: dict[tuple[float, float], list[Point]] = {}
    for point in points:
        groups.setdefault((point.scheme.latency, point.scheme.h), []).append(point)
    for (latency, h), group in groups.items():
        largest = f"{100 * worst(group).error:+.1f} %"
        shown = [a for a in SHOWN if any(point.scheme.a == a for point in group)]
        for a in shown or sorted({point.scheme.a for point in group}):
            found = {point.scheme.r: point for point in group if point.scheme.a == a}
            cells = [
                f"{found[r].measured:.2f} ({found[r].expected:.2f})" if r in found else "-" for r in speeds
            ]
            lines.append(f"| {latency:g} | {h:g} | {a:g} | {' | '.join(cells)} | {largest} |")
    return "\n".join(lines)


def summary(points: Sequence[Point]) -> str:
    """One sentence."""
    errors = sorted(abs(point.error) for point in points)
    return (
        f"{len(points)} points: relative error {100 * errors[len(errors) // 2]:.1f} % in the median, "
        f"{100 * errors[-1]:.1f} % at most ({point_line(worst(points))})."
    )
