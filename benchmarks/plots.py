"""Figures as SVG files. The only module that imports matplotlib, and only when a figure is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.grid import Point
from benchmarks.renewal import speedup
from server.errors import StartupError

DIRECTORY = Path(__file__).parent.parent / "docs" / "plots"


def _pyplot() -> Any:
    """matplotlib, drawing without a display and the same bytes for the same data. Raises StartupError."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise StartupError("plots need matplotlib: pip install matplotlib, or leave --plots out") from error
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "duo"
    matplotlib.rcParams["font.size"] = 8
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    _pyplot().close(figure)


def draw_grid(points: Sequence[Point], path: Path, title: str) -> None:
    """A panel for each (latency, h): lines are the formula over r, one for each a, dots what was measured."""
    latencies = sorted({point.scheme.latency for point in points})
    hits = sorted({point.scheme.h for point in points})
    figure, axes = _pyplot().subplots(
        len(hits),
        len(latencies),
        figsize=(2.6 * len(latencies), 2.2 * len(hits)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for i, h in enumerate(hits):
        for j, latency in enumerate(latencies):
            panel = [p for p in points if p.scheme.h == h and p.scheme.latency == latency]
            _draw_panel(axes[i][j], panel)
            axes[i][j].set_title(f"latency {latency:g} tt, h = {h:g}")
    for axis in axes[-1]:
        axis.set_xlabel("r = tt / td")
    for row in axes:
        row[0].set_ylabel("speed-up")
    axes[0][0].legend(fontsize=6, loc="upper left")
    figure.suptitle(title)
    _save(figure, path)


def _draw_panel(axis: Any, points: Sequence[Point]) -> None:
    for n, a in enumerate(sorted({point.scheme.a for point in points})):
        curve = sorted((p for p in points if p.scheme.a == a), key=lambda point: point.scheme.r)
        speeds = [point.scheme.r for point in curve]
        axis.plot(speeds, [speedup(p.scheme) for p in curve], color=f"C{n}", linewidth=1, label=f"a = {a:g}")
        axis.plot(speeds, [p.measured for p in curve], color=f"C{n}", marker=".", linestyle="none")
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter("{x:g}")


def draw_sweep(series: Mapping[str, Sequence[tuple[float, float, float]]], path: Path, title: str) -> None:
    """Measured (dots) and expected (lines) speed-ups over r, one colour for each name in `series`, whose
    values are (r, measured, expected)."""
    figure, axis = _pyplot().subplots(figsize=(5.5, 3.8), layout="constrained")
    for n, (name, values) in enumerate(series.items()):
        speeds = [r for r, _, _ in sorted(values)]
        axis.plot(speeds, [e for _, _, e in sorted(values)], color=f"C{n}", linewidth=1, label=name)
        axis.plot(speeds, [m for _, m, _ in sorted(values)], color=f"C{n}", marker="o", linestyle="none")
    axis.axhline(1.0, color="grey", linewidth=0.5)
    axis.set_xlabel("r = tt / td")
    axis.set_ylabel("speed-up over no drafters")
    axis.legend(fontsize=7)
    figure.suptitle(title)
    _save(figure, path)
