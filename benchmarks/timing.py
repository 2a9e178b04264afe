"""The frame of overhead and drafting: cases, Python's time outside decode, a table, and profiles."""

from __future__ import annotations

import argparse
import cProfile
import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks import hot, prepared, program, report
from server.errors import StartupError
from server.sampling.params import SamplingParams

TOP = 15  # functions of a profile
WAYS = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
    "defaults": SamplingParams(seed=1),
}


@dataclass(frozen=True, slots=True)
class Case:
    """way: of WAYS. rows: the name of the logits, with their vocabulary."""

    what: str
    way: str
    rows: str

    def __str__(self) -> str:
        return f"{self.what}; {self.way}; {self.rows}"


@dataclass(frozen=True, slots=True)
class Cost:
    """One unit of work: median microseconds outside decode, those of the fastest and the slowest tenth,
    means of guesses and of committed tokens."""

    us: float
    us_fastest: float
    us_slowest: float
    n_guesses: float
    n_committed: float


class Bench(Protocol):
    """A session without a model. n_guesses, n_committed: in all so far."""

    n_guesses: int
    n_committed: int

    def work(self, profile: cProfile.Profile | None = None) -> float:
        """One unit; returns its seconds outside decode. A profile records it, which slows it down."""
        ...


@dataclass(frozen=True, slots=True)
class Subject:
    """What one program measures. unit: of work. cases: by vocabulary sizes. heads, cells: of the table's
    columns before the rows' names, and of one result. file: of the program, left out of profiles."""

    name: str
    title: str
    unit: str
    n_units: int
    vocabularies: Sequence[int]
    cases: Callable[[Sequence[int]], list[Case]]
    make: Callable[[Case, int], Bench]
    heads: Sequence[str]
    means: Callable[[Cost], Sequence[float]]
    cell: Callable[[Case, Cost], str]
    legend: str
    file: str


def measure(bench: Bench, n: int) -> Cost:
    gc.collect()
    n_guesses, n_committed = bench.n_guesses, bench.n_committed
    us = sorted(1e6 * bench.work() for _ in range(n))
    n_guesses, n_committed = bench.n_guesses - n_guesses, bench.n_committed - n_committed
    return Cost(statistics.median(us), us[n // 10], us[n - 1 - n // 10], n_guesses / n, n_committed / n)


def profiled(subject: Subject, bench: Bench, n: int) -> str:
    """Markdown: the functions with the most own time, without decode and what is not duo's."""
    profile = cProfile.Profile()
    for _ in range(n):
        bench.work(profile)
    profile.create_stats()
    stats: dict[hot.Function, hot.Entry] = vars(profile)["stats"]
    own = {f: e for f, e in stats.items() if f[0] not in (subject.file, prepared.__file__)}
    return hot.table(hot.ranked(own, n)[:TOP], subject.unit)


def table(subject: Subject, costs: Mapping[Case, Cost]) -> str:
    """Markdown: what and way by rows."""
    columns = list(dict.fromkeys(case.rows for case in costs))
    lines: list[list[str]] = []
    for what, way in dict.fromkeys((case.what, case.way) for case in costs):
        found = {
            case.rows: (case, cost) for case, cost in costs.items() if (case.what, case.way) == (what, way)
        }
        means = zip(*(subject.means(cost) for _, cost in found.values()), strict=True)
        cells = [subject.cell(*found[column]) if column in found else "-" for column in columns]
        lines.append([what, way, *(f"{statistics.mean(values):.1f}" for values in means), *cells])
    return report.table([*subject.heads, *columns], lines, n_words=2)


def main(subject: Subject) -> Callable[..., int]:
    """The program."""
    return program.main(lambda: _parser(subject), lambda args: _measure_all(subject, args))


def _parser(subject: Subject) -> argparse.ArgumentParser:
    parser = program.make_parser(subject.name, f"Microseconds of Python in a {subject.unit}.")
    add = parser.add_argument
    add(f"--{subject.unit}s", dest="n", type=int, default=subject.n_units, help="of each case")
    add("--vocabularies", type=_sizes, default=subject.vocabularies, help="such as 4000,150000")
    add("--only", default="", help="cases with this in their name, as --profile shows it")
    add("--profile", action="store_true", help="also show where the time of each case goes")
    return parser


def _measure_all(subject: Subject, args: argparse.Namespace) -> program.Result:
    chosen = [case for case in subject.cases(args.vocabularies) if args.only in str(case)]
    if not chosen or args.n < 1:
        raise StartupError("nothing to measure")
    costs: dict[Case, Cost] = {}
    for case in chosen:
        costs[case] = cost = measure(subject.make(case, args.n), args.n)
        print(f"{case}: {cost.us:.0f} µs, a tenth {cost.us_fastest:.0f}", flush=True)
    what = f"Microseconds of a {subject.unit} outside decode, medians over {args.n} {subject.unit}s of one "
    parts = [f"{what}session, {prepared.N_PROMPT} tokens and more in its context. {subject.legend}"]
    parts.append(table(subject, costs))
    for case in chosen if args.profile else ():
        shown = profiled(subject, subject.make(case, args.n), args.n)
        parts.append(f"{case}, by cProfile, which makes small functions look larger:\n\n{shown}")
    return subject.title, parts


def _sizes(text: str) -> list[int]:
    sizes = [int(part) for part in text.split(",")]
    if min(sizes) < 300:
        raise ValueError(text)
    return sizes
