"""Time duo's first answer after a restart: `python -m benchmarks.starts --rounds 7`.

The question comes as soon as the lead is ready, as from a user who waits for the page. Before the measured
starts, one start is left alone until it is idle, so that it has measured its steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from benchmarks import program, report
from benchmarks.client import ask
from benchmarks.processes import Command, Process, duo
from benchmarks.prompts import load


def started(command: Command, max_tokens: int) -> tuple[float, float]:
    """Start duo, ask, and end it. Raises DuoError.

    Returns:
        Seconds from the command until duo is ready, and until the first word.
    """
    began = time.perf_counter()
    with Process(command) as process:
        process.wait_ready()
        ready = time.perf_counter()
        reply = ask(process.port, load(1)[0], max_tokens)
        return ready - began, reply.asked + reply.first_ms / 1000 - began


def measure(args: argparse.Namespace) -> program.Result:
    """Measure the starts and return the section. Raises DuoError."""
    command = Command("duo up", duo("up", *args.duo_flags))
    with Process(command) as process:
        process.wait_ready()
        process.wait_calm()
    seconds = [started(command, args.max_tokens) for _ in range(args.rounds)]
    names = "ready", "first word", "first word after ready"
    columns = [ready for ready, _ in seconds], [first for _, first in seconds], [b - a for a, b in seconds]
    rows = [
        (name, *(report.number(of(column), 2) for of in (statistics.median, min, max)))
        for name, column in zip(names, columns, strict=True)
    ]
    return f"duo up, {args.rounds} starts", [report.table("seconds | median | least | most", rows)]


def _parser() -> argparse.ArgumentParser:
    shared = "duo-flags", "rounds", "max-tokens"
    return program.make_parser("starts", "How soon duo up answers.", *shared, rounds=7, max_tokens=16)


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
