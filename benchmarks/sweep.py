"""Speed-ups over acceptance, speed and latency of drafters, beside those of the formulas (formulas.py).

`python -m benchmarks.sweep --simulated`: a discrete-event simulator that shares no code with the server.
`python -m benchmarks.sweep --virtual`: the real engine and proposer under a virtual clock.
`python -m benchmarks.sweep [--accept .6,.8,.9] [--r 4,8,16] [--drafters 1,2] [--crashes 2:1,5:1]`: real
processes, a lead and replay drafters over Redis Streams, asked over HTTP, beside a lead without drafters.
"""

from __future__ import annotations

import argparse
import functools
import sys

from benchmarks import grid, live, program, report, virtual
from benchmarks.crashes import parse_schedule
from benchmarks.formulas import Scheme, asynchronous, with_outages
from benchmarks.simulation import DrafterSetup, LeadSetup, simulate
from server.flags import n_cores

AWAY = tuple((100.0 * i, 100.0 * i + 50) for i in range(200))  # dead for every other 50 tt
BEYOND_TOKENS = 12_000  # of each case beyond the grid

_plain = functools.cache(virtual.plain)


def virtual_speed(scheme: Scheme, n_tokens: int) -> float:
    """A grid.Measure."""
    return virtual.speedup(scheme, _plain(n_tokens))


def simulated_speed(scheme: Scheme, n_tokens: int) -> float:
    """A grid.Measure."""
    drafter = DrafterSetup(scheme.a, scheme.r, scheme.h, scheme.latency)
    return simulate(LeadSetup(scheme.v, scheme.k_max), [drafter], n_tokens).speedup


def beyond(n_tokens: int) -> str:
    """Markdown: several drafters and absent ones, at a = 0.8 and r = 8."""
    one, away = DrafterSetup(0.8, 8), DrafterSetup(0.8, 8, outages=AWAY)
    expected = asynchronous(0.8, 8)
    rows: list[tuple[str, LeadSetup, list[DrafterSetup], float | None]] = [
        ("one drafter", LeadSetup(), [one], expected),
        ("it is away half of the time", LeadSetup(), [away], with_outages(expected, 0.5)),
        ("two drafters, the longest path verified", LeadSetup(), [one, one], None),
        ("two drafters, both paths verified", LeadSetup(merge="all"), [one, one], None),
        ("two, one of them away half of the time", LeadSetup(), [one, away], None),
    ]
    cells = [
        (name, f"{simulate(lead, drafters, n_tokens).speedup:.2f}", report.number(formula, 2))
        for name, lead, drafters, formula in rows
    ]
    return report.table(("a = 0.8, r = 8, no latency", "simulated", "formula"), cells)


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError, OSError."""
    if args.simulated:
        points = grid.measure(grid.schemes()[:: args.every], simulated_speed)
        parts = [grid.summary(points), grid.table(points), beyond(BEYOND_TOKENS)]
        return "the simulator beside the formulas", parts
    if args.virtual:
        points = grid.measure(grid.schemes(hits=[0.0])[:: args.every], virtual_speed)
        return "the engine under a virtual clock", [grid.summary(points), grid.table(points)]
    return "replay drafters, real processes", live.measure(args)


def _parser() -> argparse.ArgumentParser:
    spare = max(1, n_cores() - 1)  # the lead's threads wait for each other, so drafters need a core
    what = "Replay drafters against the formulas."
    shared = ("inflated", "threads", "prompts", "max-tokens")
    parser = program.make_parser("sweep", what, *shared, threads=spare, prompts=4)
    add = parser.add_argument
    add("--simulated", action="store_true", help="by a simulator, the whole grid")
    add("--virtual", action="store_true", help="the engine under a virtual clock, the grid without hits")
    add("--accept", type=program.floats, default=[0.6, 0.8, 0.9], help="acceptances a")
    add("--r", type=program.floats, default=[4.0, 8.0, 16.0], help="drafted tokens per plain step")
    add("--latency", type=program.floats, default=[0.0], help="one-way latencies, in plain steps")
    add("--hit", type=program.floats, default=[0.0], help="shares h of corrections drafted ahead")
    add("--drafters", type=program.numbers, default=[1], help="numbers of drafters")
    crashes = "kill -9 every drafter this many seconds into each point, for this long: 2:1,5:1"
    add("--crashes", type=parse_schedule, default=(), help=crashes)
    add("--draft-max", type=int, default=8, help="most drafted tokens verified per step")
    add("--every", type=int, default=1, help="measure every n-th point of the grid only")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
