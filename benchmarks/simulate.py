"""The discrete-event simulator against the formulas: `python -m benchmarks.simulate [--plots]`.

Prints every point of the grid with its relative error. What the formulas do not know comes after it: several
drafters, drafters that are away half of the time, waiting.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import grid, plots, report
from benchmarks.formulas import asynchronous, best_wait, waiting, with_outages
from benchmarks.renewal import Scheme
from benchmarks.simulation import DrafterSetup, LeadSetup, simulate
from server.errors import DuoError

AWAY = tuple((100.0 * i, 100.0 * i + 50) for i in range(200))  # every other 50 tt
PLOT = "simulated.svg"


def speed(scheme: Scheme, n_tokens: int) -> float:
    """A grid.Measure."""
    lead = LeadSetup(scheme.v, scheme.k_max, scheme.wait)
    drafter = DrafterSetup(scheme.a, scheme.r, scheme.h, scheme.latency)
    return simulate(lead, [drafter], n_tokens).speedup


def beyond(n_tokens: int) -> str:
    """Markdown: what the grid leaves out, at a = 0.8 and r = 8."""
    a, r = 0.8, 8
    one, away = DrafterSetup(a, r), DrafterSetup(a, r, outages=AWAY)
    w = max(1, round(best_wait(a, r)))
    rows: list[tuple[str, LeadSetup, list[DrafterSetup], str]] = [
        ("one drafter", LeadSetup(), [one], f"{asynchronous(a, r):.2f}"),
        (f"the lead waits for {w} drafts", LeadSetup(wait=w), [one], f"{waiting(a, r, w):.2f}"),
        (
            "it is away half of the time",
            LeadSetup(),
            [away],
            f"{with_outages(asynchronous(a, r), 0.5):.2f}",
        ),
        ("two drafters, the longest path verified", LeadSetup(), [one, one], "-"),
        ("two drafters, both paths verified", LeadSetup(merge="all"), [one, one], "-"),
        ("two, one of them away half of the time", LeadSetup(), [one, away], "-"),
    ]
    lines = ["| a = 0.8, r = 8, no latency | simulated | formula |", "| --- | ---: | ---: |"]
    for name, lead, drafters, expected in rows:
        measured = simulate(lead, drafters, n_tokens).speedup
        lines.append(f"| {name} | {measured:.2f} | {expected} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate", description="Simulated speed-ups beside the formulas."
    )
    report.add_flags(parser)
    parser.add_argument(
        "--beyond-tokens", type=int, default=12_000, help="tokens of each case beyond the grid"
    )
    args = parser.parse_args(arguments)
    try:
        points = grid.measure(
            report.every(grid.schemes(), args.every), speed, lambda p: print(grid.point_line(p), flush=True)
        )
        parts = [grid.summary(points), grid.table(points), beyond(args.beyond_tokens)]
        if args.plots:
            plots.draw_grid(points, args.plots / PLOT, "Simulated (dots) and formula (lines)")
            parts.append(report.figure(args, PLOT, "simulated speed-ups"))
        text = report.section("the simulator beside the formulas", "benchmarks.simulate", arguments, parts)
        report.publish(text, args.append)
    except DuoError as error:
        print(f"simulate: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
