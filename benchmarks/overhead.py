"""Python's share of a step: `python -m benchmarks.overhead [--profile --only "tree by drafter"]`.

The real engine and the real proposer for one session, over a backend without a model: its decode only copies
prepared rows of logits, which leaves them in the processor's caches as a real decode does. What counts is a
step's time without that of decode. The proposer's clock sees decodes as long as a model's, so that its
decisions are those of a server. Guesses are right with probability .8, and come from a script, from a draft
model in the lead, whose decodes do not count either, or, as Draft messages, from a drafter on a bus; what
that drafter does itself happens between steps.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import prepared, report
from benchmarks.prepared import DECODE_S, DEPTH, LEAVES, N_BATCH, ROW_S
from benchmarks.profiling import by_own_time
from server.engine.engine import Engine
from server.engine.events import Committed, Event
from server.engine.proposer import Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.backend import Logits
from server.sampling.params import SamplingParams
from server.speculation.costs import StepCosts
from server.speculation.draft_model import DraftModel
from server.speculation.policy import Policy
from server.speculation.remote import RemoteDrafters
from server.speculation.speculator import Speculator

N_PROMPT = 512
WARM_UP = 20  # steps
PLAIN_US, DRAFTED_US = 150.0, 400.0  # what a step without and with guesses may take
WAYS = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
    "defaults": SamplingParams(seed=1),
}
SHAPES = {"peaked": True, "flat": False}


@dataclass(frozen=True, slots=True)
class Guesses:
    """kind: none, chain or tree. by: script, drafter or lead, where there are any."""

    kind: str
    by: str = ""
    lookup: bool = False

    @property
    def bound_us(self) -> float:
        """What a step may take."""
        return DRAFTED_US if self.by else PLAIN_US

    def __str__(self) -> str:
        return self.kind + (f" by {self.by}" if self.by else "") + (", lookup" if self.lookup else "")


ALL = (
    Guesses("none"),
    Guesses("none", lookup=True),
    Guesses("chain", "script"),
    Guesses("tree", "script"),
    Guesses("chain", "lead"),
    Guesses("chain", "drafter"),
    Guesses("tree", "drafter"),
    Guesses("tree", "drafter", lookup=True),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a step: median microseconds outside decode, those of the fastest tenth, mean of drafted rows, mean
    of committed tokens."""

    us: float
    us_fastest: float
    n_drafted: float
    n_committed: float


class Bench:
    """One session that decodes, step by step."""

    def __init__(self, rows: Logits, guesses: Guesses, sampling: SamplingParams, n_steps: int) -> None:
        self.watch = prepared.Watch()
        n_ctx = N_PROMPT + (WARM_UP + n_steps) * (DEPTH + 1) + DEPTH + 1
        self._backend = prepared.PreparedBackend(rows, n_ctx, self.watch)
        self.tokens: list[int] = []  # committed ones
        proposer, self._between = self._proposer(guesses, rows, sampling, n_ctx)
        leaves = LEAVES if guesses.kind == "tree" else 1
        limits = Limits(n_batch=N_BATCH, draft_max=DEPTH, leaves=leaves)
        self._engine = Engine(
            self._backend, proposer, self._count, n_slots=1, limits=limits, clock=self.watch
        )
        prompt = np.random.default_rng(1).integers(0, rows.shape[1], N_PROMPT).tolist()
        self._engine.submit(1, GenerationRequest(prompt, sampling))
        while not self.tokens:
            self.step()
        for _ in range(WARM_UP):
            self.step()

    def _proposer(
        self, guesses: Guesses, rows: Logits, sampling: SamplingParams, n_ctx: int
    ) -> tuple[Proposer, Callable[[], None]]:
        """And what has to happen between steps."""
        script = prepared.Script(rows, sampling)
        leaves = LEAVES if guesses.kind == "tree" else 1
        if guesses.by == "script":
            proposer = prepared.ScriptedProposer(script, leaves=leaves)
            return proposer, proposer.prepare
        policy = Policy(max_rows=4 + 2 * DEPTH, leaves=leaves, lookup=guesses.lookup)
        known = {n: DECODE_S + n * ROW_S for n in range(1, policy.max_rows + 1)}
        costs = StepCosts(policy.max_rows, known)
        if guesses.kind == "none":
            return Speculator(policy, costs=costs, clock=self.watch), lambda: None
        if guesses.by == "lead":
            draft = prepared.PreparedBackend(rows, n_ctx, self.watch, drafts=True)
            inline = DraftModel(draft, clock=self.watch)
            return Speculator(policy, inline=inline, costs=costs, clock=self.watch), lambda: None
        drafter = prepared.ScriptedDrafter(script, rows.shape[1], branches=leaves > 1)
        remote = RemoteDrafters(drafter, drafter.lead, max_ahead=2 * DEPTH, clock=self.watch)
        drafter.start(remote)
        return Speculator(policy, remote=remote, costs=costs, clock=self.watch), drafter.answer

    def _count(self, _: int, event: Event) -> None:
        if isinstance(event, Committed):
            self.tokens += event.tokens

    def step(self, profile: cProfile.Profile | None = None) -> float:
        """Seconds outside decode. A profile records the step, which slows it down."""
        self._between()
        decoded_s = self.watch.decoded_s
        if profile:
            profile.enable()
        began = time.perf_counter()
        self._engine.step()
        spent_s = time.perf_counter() - began
        if profile:
            profile.disable()
        return spent_s - (self.watch.decoded_s - decoded_s)

    @property
    def n_committed(self) -> int:
        return len(self.tokens)

    @property
    def n_drafted(self) -> int:
        """Of the last step."""
        return self._backend.n_rows_last - 1


def measure(rows: Logits, guesses: Guesses, sampling: SamplingParams, n_steps: int) -> Cost:
    """One case."""
    bench = Bench(rows, guesses, sampling, n_steps)
    gc.collect()
    before, n_drafted, seconds = bench.n_committed, 0, list[float]()
    for _ in range(n_steps):
        seconds.append(bench.step())
        n_drafted += bench.n_drafted
    n_committed = bench.n_committed - before
    fastest = sorted(seconds)[n_steps // 10]
    return Cost(1e6 * statistics.median(seconds), 1e6 * fastest, n_drafted / n_steps, n_committed / n_steps)


def profiled(rows: Logits, guesses: Guesses, sampling: SamplingParams, n_steps: int) -> str:
    """The functions in which most of a step is spent, by own time; decode, which is not the server's, is
    left out."""
    bench = Bench(rows, guesses, sampling, n_steps)
    profile = cProfile.Profile()
    for _ in range(n_steps):
        bench.step(profile)
    return by_own_time(profile, n_steps, "step", {__file__, prepared.__file__})


# -- the program ----------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """A set of rows by vocabulary size and shape."""

    n_vocab: int
    shape: str

    def __str__(self) -> str:
        return f"{self.n_vocab // 1000}k {self.shape}"

    def make(self) -> Logits:
        return _made(self.n_vocab, self.shape)


@functools.cache
def _made(n_vocab: int, shape: str) -> Logits:
    return prepared.make_rows(n_vocab, peaked=SHAPES[shape])


@dataclass(frozen=True, slots=True)
class Case:
    guesses: Guesses
    way: str
    rows: Rows

    def __str__(self) -> str:
        return f"{self.guesses}; {self.way}; {self.rows}"


def cases(vocabularies: Sequence[int], only: str = "") -> list[Case]:
    """All whose name has `only` in it."""
    columns = [Rows(n, shape) for n in vocabularies for shape in SHAPES]
    every = [Case(guesses, way, rows) for guesses in ALL for way in WAYS for rows in columns]
    return [case for case in every if only in str(case)]


def table(costs: dict[Case, Cost]) -> str:
    """Markdown: guesses and sampling by rows; what is over its bound is bold."""
    columns = sorted({case.rows for case in costs}, key=lambda rows: (rows.n_vocab, rows.shape != "peaked"))
    lines = [
        f"| guesses | sampling | guesses a step | tokens a step | {' | '.join(map(str, columns))} |",
        f"| --- | --- |{' ---: |' * (2 + len(columns))}",
    ]
    for guesses, way in dict.fromkeys((case.guesses, case.way) for case in costs):
        row = {c.rows: cost for c, cost in costs.items() if (c.guesses, c.way) == (guesses, way)}
        drafted = statistics.mean(cost.n_drafted for cost in row.values())
        committed = statistics.mean(cost.n_committed for cost in row.values())
        cells = [_cell(row[column], guesses.bound_us) if column in row else "-" for column in columns]
        lines.append(f"| {guesses} | {way} | {drafted:.1f} | {committed:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(cost: Cost, bound: float) -> str:
    return f"**{cost.us:.0f}**" if cost.us > bound else f"{cost.us:.0f}"


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead", description="Microseconds of Python in a step."
    )
    parser.add_argument("--steps", type=int, default=300, help="steps of each case")
    parser.add_argument("--vocabularies", type=_sizes, default=[4_000, 150_000], help="such as 4000,150000")
    parser.add_argument("--only", default="", help="cases with this in their name, as --profile shows it")
    parser.add_argument("--profile", action="store_true", help="also show where the time of each case goes")
    parser.add_argument("--append", type=Path, help="append the result to this markdown file")
    return parser


def _sizes(text: str) -> list[int]:
    sizes = [int(part) for part in text.split(",")]
    if min(sizes) < 100:
        raise ValueError(text)
    return sizes


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    parser = _flags()
    args = parser.parse_args(arguments)
    chosen = cases(args.vocabularies, args.only)
    if not chosen or args.steps < 1:
        parser.error("nothing to measure")
    costs: dict[Case, Cost] = {}
    for case in chosen:
        costs[case] = measure(case.rows.make(), case.guesses, WAYS[case.way], args.steps)
        print(f"{case}: {costs[case].us:.0f} µs, a tenth {costs[case].us_fastest:.0f}", flush=True)
    what = (
        f"Microseconds of a step outside decode, medians over {args.steps} steps of one session, "
        f"{N_PROMPT} tokens and more in its context. Bold: more than {PLAIN_US:.0f} without guesses, "
        f"{DRAFTED_US:.0f} with."
    )
    parts = [what, table(costs)]
    for case in chosen if args.profile else ():
        shown = profiled(case.rows.make(), case.guesses, WAYS[case.way], args.steps)
        parts.append(f"{case}, by cProfile, which makes small functions look larger:\n\n```\n{shown}\n```")
    text = report.section("Python's share of a step", "benchmarks.overhead", arguments, parts)
    report.publish(text, args.append)
    return 0


if __name__ == "__main__":
    sys.exit(main())
