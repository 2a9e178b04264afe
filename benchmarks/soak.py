"""Check that a long-lived lead keeps its memory, descriptors, threads, latency and acceptance.

Clients ask a lead with two drafters (the bundled models as F32) for replies of every kind, and compare each
reply with a quiet lead's. Other clients hold conversations that nobody had before. Faults come and go as in
tests/chaos, except those that end the lead. First, the lead's memory of conversations is filled, since a
memory that fills looks like a leak. States that --cache-ram bounds are not counted.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from statistics import linear_regression, median, quantiles
from tempfile import TemporaryDirectory

from benchmarks import client, program, report
from benchmarks.prompts import PYTHON, Prompt, endless
from server.text.transcript import MOST_CONVERSATIONS
from tests.chaos.faults import Fault, Heal
from tests.chaos.schedule import LAST_S, Chaos, Turn, schedule
from tests.chaos.seeds import exact_models
from tests.chaos.system import System, live

WARM_SHARE = 0.25  # of the time, before the slope is taken: caches fill. Half: their filling counts as a leak
TABLE_ROWS = 12  # of the table
REPLY_TOKENS = 64  # of a conversation's reply
N_FILLING = 4  # conversations at once that fill the lead's memory: its slots
TALKS_ON_S = 0.01  # after the last fault, since a lead that is stopped answers only then
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of the idle system after a schedule."""

    at_s: float
    memory: int  # bytes of the lead, without kept states of conversations
    n_threads: int
    n_descriptors: int
    latencies_s: list[float]  # of the replies compared since the last sample
    n_accepted: int  # guesses of drafters in them


def talking(system: System, chance: Random) -> Heal:
    """Start to ask prompts with a new salt; return a call that stops."""
    stopped, salt = threading.Event(), chance.randrange(1 << 30)
    failures: list[Exception] = []

    def talk() -> None:
        try:
            for prompt in islice(endless(PYTHON), salt % 1000, None):
                if stopped.is_set():
                    return
                client.ask(system.port, prompt, REPLY_TOKENS, more={"cache_salt": f"{salt}"})
        except client.ReplyError as error:
            failures.append(error)

    thread = threading.Thread(target=talk)
    thread.start()

    def heal() -> None:
        stopped.set()
        thread.join()
        if failures:
            raise failures[0]

    return heal


TALK = Fault("somebody talks", "talking", talking)


def fill(port: int) -> None:
    """Hold as many conversations as a lead can remember. Raises ReplyError."""

    def hold(prompt: Prompt) -> None:
        client.ask(port, prompt, REPLY_TOKENS, more={"speculative": False})

    with ThreadPoolExecutor(N_FILLING) as pool:
        for _ in pool.map(hold, islice(endless(PYTHON), MOST_CONVERSATIONS)):
            pass


def soak(minutes: float) -> tuple[list[Sample], list[str]]:
    """Return the samples and the problems found."""
    samples: list[Sample] = []
    problems: list[str] = []
    with ExitStack() as stack:
        models = stack.enter_context(exact_models())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="duo-soak-", dir="/tmp")))
        chaos = Chaos(stack.enter_context(live(folder, models)))
        fill(chaos.system.port)
        chaos.warm_up()
        began = time.monotonic()
        for seed in count():
            turns = [turn for turn in schedule(seed) if not turn.fault.ends_lead]
            last_s = max(turn.ends_s for turn in turns) if turns else LAST_S
            found = chaos.play([Turn(0, last_s + TALKS_ON_S, TALK, seed), *turns])
            problems += [f"{seed}: {problem}" for problem in found]
            samples.append(_sample(chaos, time.monotonic() - began))
            last = samples[-1]
            print(f"{last.at_s:.0f} s, {last.memory / 2**20:.1f} MiB, {len(found)} problems", flush=True)
            if problems or samples[-1].at_s > 60 * minutes:
                return samples, problems
    raise AssertionError("endless")


def _sample(chaos: Chaos, at_s: float) -> Sample:
    lead = chaos.system.lead
    footprint = lead.footprint()
    n_threads = footprint.pop("thread")
    memory: int = chaos.system.get("/size")["bytes"]
    one = Sample(at_s, memory, n_threads, footprint.total(), chaos.seconds, chaos.n_accepted)
    chaos.seconds, chaos.n_accepted = [], 0
    return one


def slope(samples: Sequence[Sample]) -> float:
    """Return the growth of memory per hour after the warm-up, as a share."""
    warm = samples[int(WARM_SHARE * len(samples)) :]
    line = linear_regression([one.at_s for one in warm], [one.memory for one in warm])
    return line.slope * 3600 / line.intercept


def _row(part: Sequence[Sample]) -> list[float]:
    latencies = [seconds for one in part for seconds in one.latencies_s]
    return [
        part[-1].at_s / 60,
        median(one.memory for one in part) / 2**20,
        max(one.n_threads for one in part),
        max(one.n_descriptors for one in part),
        len(latencies),
        median(latencies),
        quantiles(latencies, n=100)[-1],
        sum(one.n_accepted for one in part) / len(latencies),
    ]


def plot(values: Sequence[float]) -> str:
    """Return a bar for each value, scaled from the least value to the most."""
    least, most = min(values), max(values)
    return "".join(BARS[round((len(BARS) - 1) * (value - least) / ((most - least) or 1))] for value in values)


def table(samples: Sequence[Sample]) -> str:
    each = -(-len(samples) // TABLE_ROWS)
    rows = [_row(samples[i : i + each]) for i in range(0, len(samples), each)]
    digits = (0, 1, 0, 0, 0, 2, 1, 1)
    cells = [[report.number(value, n) for value, n in zip(row, digits, strict=True)] for row in rows]
    plots = ["over time", *(plot(column) for column in list(zip(*rows, strict=True))[1:])]
    heads = "until minute | MiB | threads | descriptors | replies | s, median | s, 99 % | accepted of each"
    return report.table(heads, [*cells, plots])


def measure(args: argparse.Namespace) -> program.Result:
    """Run the soak and return the section. Raises ReplyError for the first problem."""
    samples, problems = soak(args.minutes)
    if problems:
        raise client.ReplyError("\n".join(problems))
    n_replies = sum(len(one.latencies_s) for one in samples)
    said = (
        f"{n_replies} replies as they should be in {samples[-1].at_s / 60:.0f} minutes and {len(samples)} "
        f"schedules of faults. Memory of the lead: {100 * slope(samples):+.2f} percent an hour after the "
        f"first {WARM_SHARE:.0%}."
    )
    return "soak", [said, table(samples)]


def _parser() -> argparse.ArgumentParser:
    parser = program.make_parser("soak", "Memory, descriptors, threads and latency of a lead over time.")
    parser.add_argument("--minutes", type=float, default=60, help="how long")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
