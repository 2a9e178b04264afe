"""Steps on a CPU whose cores other programs take: `python -m benchmarks.beside --model M --loads 0,1,1+1`.

Beside each load a context computes in turn with all its threads and with as many as server/llama/threads.py
finds quickest. Linux only: elsewhere both are alike.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from statistics import mean, median

from benchmarks import program, report
from server.flags import n_cores
from server.llama.backend import Batch
from server.llama.llamacpp import LlamaBackend, LlamaOptions

CONTEXT = 64  # tokens before each step
SETTLE_S = 1.2  # of each way, until others are known after two looks of PERIOD_S
TIMED_S = 2.5  # of each way
CYCLE_S = 0.05  # of a load: it computes for its share of this, then sleeps
BUSY = (
    "import sys, time\n"
    "share, cycle_s = float(sys.argv[1]), float(sys.argv[2])\n"
    "while True:\n"
    "    end = time.perf_counter() + share * cycle_s\n"
    "    while time.perf_counter() < end:\n"
    "        pass\n"
    "    time.sleep((1 - share) * cycle_s)\n"
)


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps per second, and how many threads computed on average."""

    rate: float
    n_threads: float


@contextmanager
def busy(shares: Sequence[float]) -> Generator[None]:
    """Programs beside, each of which takes this share of a core where it gets it."""
    arguments = [[sys.executable, "-c", BUSY, str(share), str(CYCLE_S)] for share in shares if share]
    programs = [subprocess.Popen(one) for one in arguments]
    try:
        yield
    finally:
        for one in programs:
            one.kill()
            one.wait()


def pace(backend: LlamaBackend, width: int, *, all_threads: bool) -> Pace:
    """Of steps of `width` rows after CONTEXT tokens, for TIMED_S. Leaves the KV cache empty."""
    _decode(backend, 0, CONTEXT, all_threads)
    for seconds in (SETTLE_S, TIMED_S):
        numbers, began = list[int](), time.perf_counter()
        while (passed_s := time.perf_counter() - began) < seconds or not numbers:
            _decode(backend, CONTEXT, width, all_threads)
            backend.trim(0, CONTEXT)
            numbers.append(max(backend.threads.most) if all_threads else backend.threads.n)
    backend.trim(0, 0)
    return Pace(len(numbers) / passed_s, mean(numbers))


def _decode(backend: LlamaBackend, position: int, n_rows: int, all_threads: bool) -> None:
    batch = Batch(stable=all_threads)
    batch.extend(0, position, [backend.vocab.bos or 0] * n_rows, n_rows)
    backend.decode(batch)


def loads(text: str) -> list[tuple[float, ...]]:
    """Such as 0,0.5,1+1: nothing, half of a core, two programs that each take one."""
    return [tuple(map(float, one.split("+"))) for one in text.split(",")]


def run(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    n_threads = args.threads or n_cores()
    options = LlamaOptions(args.model, 1024, 1, n_threads=n_threads)
    rows = list[tuple[str, ...]]()
    with closing(LlamaBackend(options)) as backend:
        for width in args.widths:
            for shares in args.loads:
                with busy(shares):
                    pairs = [
                        [pace(backend, width, all_threads=every) for every in (True, False)]
                        for _ in range(args.rounds)
                    ]
                rows.append((str(width), " + ".join(f"{share:g}" for share in shares), *_row(pairs)))
    titles = (
        "rows",
        "others want cores",
        "steps/s, all threads",
        "steps/s, as chosen",
        "ratio",
        "threads chosen",
    )
    threads = f"{n_threads} threads, {n_cores()} cores"
    about = f"{report.model_line(args.model)}, {threads}, {args.rounds} rounds."
    return "steps beside other programs", [about, report.table(titles, rows, n_words=2)]


def _row(pairs: Sequence[Sequence[Pace]]) -> tuple[str, ...]:
    """Medians of both ways, the median of their ratio in a round, and the threads of the second way."""
    every, some = (median(pair[i].rate for pair in pairs) for i in (0, 1))
    ratio = median(some.rate / every.rate for every, some in pairs)
    return f"{every:.1f}", f"{some:.1f}", f"{ratio:.2f}", f"{median(pair[1].n_threads for pair in pairs):.1f}"


def _parser() -> argparse.ArgumentParser:
    parser = program.make_parser("beside", "Steps beside busy programs.", "model", "rounds", rounds=3)
    add = parser.add_argument
    add("--threads", type=int, default=0, help="default: one for each core")
    add("--widths", type=program.numbers, default=[1], help="rows of a step, such as 1,8")
    add("--loads", type=loads, default=loads("0,0.3,0.6,0.8,1,1+1"), help=str(loads.__doc__))
    return parser


main = program.main(_parser, run)

if __name__ == "__main__":
    sys.exit(main())
