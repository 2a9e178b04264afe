"""Speed-ups over acceptance, speed and latency of drafters, beside those of the formulas (formulas.py):
`python -m benchmarks.sweep [--accept .6,.8,.9] [--r 4,8,16] [--drafters 1,2] [--crashes 2:1,5:1]`: real
processes, a lead and replay drafters over Redis Streams, asked over HTTP, beside a lead without drafters.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import live, program
from benchmarks.crashes import parse_schedule
from server.flags import n_cores


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError, OSError."""
    return "replay drafters, real processes", live.measure(args)


def _parser() -> argparse.ArgumentParser:
    spare = max(1, n_cores() - 1)  # the lead's threads wait for each other, so drafters need a core
    what = "Replay drafters against the formulas."
    shared = ("inflated", "threads", "prompts", "max-tokens")
    parser = program.make_parser("sweep", what, *shared, threads=spare, prompts=4)
    add = parser.add_argument
    add("--accept", type=program.floats, default=[0.6, 0.8, 0.9], help="acceptances a")
    add("--r", type=program.floats, default=[4.0, 8.0, 16.0], help="drafted tokens per plain step")
    add("--latency", type=program.floats, default=[0.0], help="one-way latencies, in plain steps")
    add("--drafters", type=program.numbers, default=[1], help="numbers of drafters")
    crashes = "kill -9 every drafter this many seconds into each point, for this long: 2:1,5:1"
    add("--crashes", type=parse_schedule, default=(), help=crashes)
    add("--draft-max", type=int, default=8, help="most drafted tokens verified per step")
    add("--every", type=int, default=1, help="measure every n-th point of the grid only")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
