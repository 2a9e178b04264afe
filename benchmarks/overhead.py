"""Python's share of a lead's step and of a drafter's turn:
`python -m benchmarks.overhead [--only "step, tree by drafter"]`.

One session (sessions.py) over a backend without a model: its decode only copies prepared rows of
logits, which leaves them in the processor's caches as a real decode does. Measured is the time without that
of decode. Clocks see decodes as long as a model's, so that decisions are those of a server.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks import prepared, program, report
from benchmarks.sessions import GUESSES, SHAPES, Work, steps, turns
from server.errors import StartupError
from server.llama.backend import Logits
from server.sampling.params import SamplingParams

PLAIN_US, DRAFTED_US = 150.0, 400.0  # bounds without and with guesses: 3 and 8 % of 5 ms on an H200
STEP, TURN = "step", "turn"
WHAT = {STEP: tuple(GUESSES), TURN: tuple(SHAPES)}
ROWS = {STEP: ("peaked", "flat"), TURN: ("falling",)}
WAYS = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
    "defaults": SamplingParams(seed=1),
}


@dataclass(frozen=True, slots=True)
class Case:
    """unit: of work. what: of WHAT. way: of WAYS. rows: thousands of tokens, and the shape of the logits."""

    unit: str
    what: str
    way: str
    rows: str

    def __str__(self) -> str:
        return f"{self.unit}, {self.what}; {self.way}; {self.rows}"

    @property
    def bound_us(self) -> float:
        """Of a step; a turn has none."""
        return PLAIN_US if self.what.startswith("none") else DRAFTED_US if self.unit == STEP else float("inf")


def cases(thousands: Sequence[int]) -> list[Case]:
    return [
        Case(unit, what, way, f"{n}k {shape}")
        for unit in (STEP, TURN)
        for what in WHAT[unit]
        for way in WAYS
        for n in sorted(thousands)
        for shape in ROWS[unit]
    ]


def measure(case: Case, n: int) -> Work:
    thousands, _, shape = case.rows.partition("k ")
    rows = _rows(1000 * int(thousands), shape)
    gc.collect()
    return (steps if case.unit == STEP else turns)(rows, case.what, WAYS[case.way], n)


@functools.cache
def _rows(n_vocab: int, shape: str) -> Logits:
    return prepared.make_rows(n_vocab, shape)


def tables(costs: Mapping[Case, Work]) -> list[str]:
    """Markdown, one for each unit of work: what and way by rows."""
    return [
        _table(unit, {case: cost for case, cost in costs.items() if case.unit == unit})
        for unit in dict.fromkeys(case.unit for case in costs)
    ]


def _table(unit: str, costs: Mapping[Case, Work]) -> str:
    columns = list(dict.fromkeys(case.rows for case in costs))
    lines: list[list[str]] = []
    for what, way in dict.fromkeys((case.what, case.way) for case in costs):
        found = {case.rows: cost for case, cost in costs.items() if (case.what, case.way) == (what, way)}
        bound_us = Case(unit, what, way, "").bound_us
        cells = [f"**{c.us:.0f}**" if c.us > bound_us else f"{c.us:.0f}" for c in found.values()]
        n_guesses = statistics.mean(cost.n_guesses for cost in found.values())
        n_committed = statistics.mean(cost.n_committed for cost in found.values())
        lines.append([what, way, f"{n_guesses:.1f}", f"{n_committed:.1f}", *cells])
    heads = ["guesses", "sampling", f"guesses a {unit}", f"tokens a {unit}", *columns]
    return report.table(heads, lines, n_words=2)


def measure_all(args: argparse.Namespace) -> program.Result:
    """Raises StartupError."""
    chosen = [case for case in cases(args.vocabularies) if args.only in str(case)]
    if not chosen or args.n < 1:
        raise StartupError("nothing to measure")
    costs: dict[Case, Work] = {}
    for case in chosen:
        costs[case] = measure(case, args.n)
        print(f"{case}: {costs[case].us:.0f} µs", flush=True)
    what = (
        f"Microseconds outside decode, medians over {args.n} steps of a lead or turns of a drafter, of one "
        f"session, {prepared.N_PROMPT} tokens and more in its context. Bold: more than {PLAIN_US:.0f} "
        f"without guesses, {DRAFTED_US:.0f} with."
    )
    return "Python's share", [what, *tables(costs)]


def _parser() -> argparse.ArgumentParser:
    parser = program.make_parser("overhead", "Microseconds of Python in a step, and in a drafter's turn.")
    add = parser.add_argument
    add("--n", type=int, default=300, help="steps or turns of each case")
    add("--vocabularies", type=program.numbers, default=[4, 150], help="thousands of tokens, such as 4,150")
    add("--only", default="", help="cases with this in their name, as they are printed")
    return parser


main = program.main(_parser, measure_all)

if __name__ == "__main__":
    sys.exit(main())
