"""What a step costs by its width: `python -m benchmarks.steps --model M --threads 1,2`.

v(k) is the time of a step that evaluates k rows over that of one row. Drafting can only pay where v(k) stays
well below k: a step that verifies k-1 guesses costs v(k) plain steps and commits at most k tokens.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from benchmarks import program, report
from server.llama.backend import Backend, Batch
from server.llama.llamacpp import LlamaBackend, LlamaOptions

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)


@dataclass(frozen=True, slots=True)
class Cost:
    """A step of `width` rows: median milliseconds, and the median of the ratio to the one-row step of its
    round."""

    width: int
    ms: float
    ratio: float


def measure(backend: Backend, widths: Sequence[int], n_context: int, n_rounds: int) -> list[Cost]:
    """Cost curve on top of n_context cached tokens. Widths take turns, so that a slow minute of the machine
    slows all of them. Leaves sequence 0 empty."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, backend.vocab.size, n_context + max(widths)).tolist()
    for begin in range(0, n_context, backend.n_batch):
        _decode(backend, begin, ids[begin : min(begin + backend.n_batch, n_context)], 0)
    times: dict[int, list[float]] = {width: [] for width in (1, *widths)}
    for _ in range(n_rounds + 1):
        for width, durations in times.items():
            began = time.perf_counter()
            _decode(backend, n_context, ids[n_context : n_context + width], width)
            durations.append(1000 * (time.perf_counter() - began))
            backend.trim(0, n_context)
    backend.trim(0, 0)
    return [_cost(width, times[width][1:], times[1][1:]) for width in widths]  # the first round warms up


def _decode(backend: Backend, position: int, tokens: list[int], n_wanted: int) -> None:
    batch = Batch()
    batch.extend(0, position, tokens, n_wanted)
    backend.decode(batch)


def _cost(width: int, times: list[float], ones: list[float]) -> Cost:
    ratios = [ms / one for ms, one in zip(times, ones, strict=True)]
    return Cost(width, statistics.median(times), statistics.median(ratios))


def table(costs: Sequence[Cost]) -> str:
    """Markdown."""
    rows = [(str(c.width), f"{c.ms:.2f}", f"{c.ratio:.2f}", f"{c.ms / c.width:.2f}") for c in costs]
    return report.table(("rows", "ms", "v(k)", "ms a row"), rows, n_words=0)


def run(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    parts = [f"{report.model_line(args.model)}, context {args.context}, {args.rounds} steps of each width."]
    for n_threads in args.threads:
        n_cells = args.context + max(args.widths)
        options = LlamaOptions(args.model, n_cells, 1, n_threads=n_threads, flash_attention=args.flash_attn)
        with closing(LlamaBackend(options)) as backend:
            costs = measure(backend, args.widths, args.context, args.rounds)
            parts += [f"{backend.description}, {n_threads} threads", table(costs)]
    return "what a step costs by its width", parts


def _parser() -> argparse.ArgumentParser:
    parser = program.make_parser("steps", "Cost of a step by its width.", "model", "rounds", rounds=30)
    add = parser.add_argument
    add("--threads", type=program.numbers, default=[1, 2], help="such as 1,2: each in turn")
    add("--widths", type=program.numbers, default=list(WIDTHS), help="rows of a step, such as 1,4,8")
    add("--flash-attn", choices=("on", "off", "auto"), default="auto", help="auto: off on a CPU")
    add("--context", type=int, default=512, help="tokens in the KV cache before the step")
    return parser


main = program.main(_parser, run)

if __name__ == "__main__":
    sys.exit(main())
