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
from pathlib import Path

import numpy as np

from server.errors import DuoError
from server.llama.backend import Backend, Batch
from server.llama.llamacpp import LlamaBackend, LlamaOptions

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a step of `width` rows: its median milliseconds, and the median of its ratio to the one-row step of
    the same round."""

    width: int
    ms: float
    ratio: float


def measure(backend: Backend, widths: Sequence[int], n_context: int, n_rounds: int) -> list[Cost]:
    """Cost curve on top of `n_context` cached tokens. Widths take turns, so that a slow minute of the machine
    slows all of them alike. Leaves sequence 0 empty."""
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
    lines = ["| rows | ms | v(k) | ms a row |", "| ---: | ---: | ---: | ---: |"]
    lines += [f"| {c.width} | {c.ms:.2f} | {c.ratio:.2f} | {c.ms / c.width:.2f} |" for c in costs]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps", description="Cost of a step by its width."
    )
    parser.add_argument("--model", type=Path, required=True, help="the GGUF file")
    parser.add_argument("--threads", type=_numbers, default=[1, 2], help="such as 1,2: each in turn")
    parser.add_argument("--widths", type=_numbers, default=list(WIDTHS), help="rows of a step, such as 1,4,8")
    parser.add_argument("--context", type=int, default=512, help="tokens in the KV cache before the step")
    parser.add_argument("--rounds", type=int, default=30, help="steps of each width")
    args = parser.parse_args(argv)
    try:
        for n_threads in args.threads:
            n_cells = args.context + max(args.widths)
            options = LlamaOptions(args.model, n_cells, 1, n_threads=n_threads)
            with closing(LlamaBackend(options)) as backend:
                costs = measure(backend, args.widths, args.context, args.rounds)
                print(f"{backend.description}, {n_threads} threads, context {args.context}\n")
                print(table(costs), end="\n\n", flush=True)
    except DuoError as error:
        print(f"steps: {error.message}", file=sys.stderr)
        return 1
    return 0


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


if __name__ == "__main__":
    sys.exit(main())
