"""Drafters that know the text and err on purpose, over (a, r, latency, …), against the formulas.

`python -m benchmarks.sweep --virtual`: the real engine and proposer under a virtual clock, the whole grid.
`python -m benchmarks.sweep [--accept .6,.8,.9] [--r 4,8,16] [--drafters 1,2] [--crashes 2:1,5:1]`: real
processes, a lead and drafters over Redis Streams, asked over HTTP, beside a lead without drafters.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import grid, live, plots, report, virtual
from benchmarks.crashes import parse_schedule
from benchmarks.renewal import Scheme
from server.errors import DuoError
from server.flags import n_cores

VIRTUAL_PLOT, LIVE_PLOT = "virtual.svg", "sweep.svg"


@functools.cache
def _plain(n_tokens: int) -> virtual.Outcome:
    return virtual.plain(n_tokens)


def virtual_speed(scheme: Scheme, n_tokens: int) -> float:
    """A grid.Measure."""
    return virtual.speedup(scheme, _plain(n_tokens))


def sweep_virtual(args: argparse.Namespace) -> list[str]:
    """Markdown parts."""
    points = grid.measure(
        report.every(grid.schemes(), args.every),
        virtual_speed,
        lambda point: print(grid.point_line(point), flush=True),
    )
    parts = [grid.summary(points), grid.table(points)]
    if args.plots:
        plots.draw_grid(
            points, args.plots / VIRTUAL_PLOT, "Engine under a virtual clock (dots), formula (lines)"
        )
        parts.append(report.figure(args, VIRTUAL_PLOT, "speed-ups of the engine under a virtual clock"))
    return parts


def sweep_live(args: argparse.Namespace) -> list[str]:
    """Markdown parts. Raises DuoError, OSError."""
    settings = [
        live.Setting(a, r, latency, h, n)
        for n, latency, h, a, r in itertools.product(
            args.drafters, args.latency, args.hit, args.accept, args.r
        )
    ]
    bench = live.Bench(
        model=args.model or live.inflated_model(),
        threads=args.threads,
        draft_max=args.draft_max,
        max_tokens=args.max_tokens,
        n_prompts=args.prompts,
    )
    results = live.measure(bench, report.every(settings, args.every), args.crashes)
    parts = [live.describe(bench, results), live.table(results.rows)]
    if args.plots:
        plots.draw_sweep(
            live.series(results.rows), args.plots / LIVE_PLOT, "Real processes: measured, formula"
        )
        parts.append(report.figure(args, LIVE_PLOT, "speed-ups of real processes"))
    return parts


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sweep", description="Replay drafters against the formulas."
    )
    parser.add_argument("--virtual", action="store_true", help="under a virtual clock, without processes")
    parser.add_argument(
        "--model", type=Path, help="GGUF file of the lead (default: bundled, inflated to 400M)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=max(
            1, n_cores() - 1
        ),  # threads wait for each other, so the drafters need a core of their own
        help="of the leads' models",
    )
    parser.add_argument("--accept", type=_floats, default=[0.6, 0.8, 0.9], help="acceptances a")
    parser.add_argument("--r", type=_floats, default=[4.0, 8.0, 16.0], help="drafted tokens per plain step")
    parser.add_argument("--latency", type=_floats, default=[0.0], help="one-way latencies, in plain steps")
    parser.add_argument("--hit", type=_floats, default=[0.0], help="shares h of corrections drafted ahead")
    parser.add_argument("--drafters", type=_counts, default=[1], help="numbers of drafters")
    parser.add_argument(
        "--crashes",
        type=parse_schedule,
        default=(),
        help="kill -9 every drafter so many seconds into each point, back so much later: 2:1,5:1",
    )
    parser.add_argument("--draft-max", type=int, default=8, help="most drafted tokens verified per step")
    parser.add_argument("--prompts", type=int, default=4, help="how many different prompts")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest reply")
    report.add_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    args = _flags().parse_args(arguments)
    title = "the engine under a virtual clock" if args.virtual else "replay drafters, real processes"
    try:
        parts = sweep_virtual(args) if args.virtual else sweep_live(args)
        report.publish(report.section(title, "benchmarks.sweep", arguments, parts), args.append)
    except (DuoError, OSError) as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _leave(*_: object) -> None:
    raise SystemExit(0)  # through the with blocks, which end the processes


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    sys.exit(main())
