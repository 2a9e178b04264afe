"""Python's share of a guess: `python -m benchmarks.drafting [--profile --only "tree; temperature 1"]`.

The real worker and the real model drafter for one session, over a backend without a model: its decode only
copies prepared rows of logits. What counts is a turn's time without that of decode: how long the model waits
for its next decode. The drafter's clock sees decodes as long as a small model's on a GPU. The lead, on a bus
that only remembers, commits eight right guesses at a time, and now and then a wrong one; what it does itself
happens between turns.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import gc
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import prepared, report
from benchmarks.profiling import by_own_time
from drafters.expansion import MOST_BRANCHES
from drafters.model import ModelDrafter
from drafters.worker import Worker
from server.llama.backend import Logits
from server.sampling.params import SamplingParams
from server.speculation.messages import Commit, Draft, Message, Open, chain_next, chain_start
from server.speculation.presence import Presence, VocabularyCard

N_PROMPT = 512
WARM_UP = 60  # turns
MAX_AHEAD = 32
READY, PER_COMMIT = 12, 8  # guesses that are there when the lead commits, and how many of them it does
N_SEQS, N_BRANCHES = 26, 8
DECODE_S = 0.0005  # of a decode, as the drafter sees it
STEEPNESS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)  # of rows: what a logit loses while the rank grows e times
WAYS = {
    "temperature 0": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
    "defaults": SamplingParams(seed=1),
}
SHAPES: dict[str, Mapping[int, float]] = {
    "path": {1: DECODE_S, 1 + MOST_BRANCHES: 1.0},  # branches would be much too dear
    "tree": {},
    "padded tree": {1: DECODE_S, 1 + MOST_BRANCHES: DECODE_S},
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a turn with a decode: median microseconds outside it, those of the fastest tenth and of all but the
    slowest one, mean of guesses."""

    us: float
    us_fastest: float
    us_slowest: float
    n_guesses: float


class Lead:
    """Implements Bus towards one drafter. What it says at a position is what the drafter draws there, or
    where it shall be wrong another guess of it, if there is any."""

    def __init__(self, script: prepared.Script, n_vocab: int, sampling: SamplingParams) -> None:
        card = VocabularyCard(n_vocab, None, None, ())
        self.drafter = Presence("drafter", "drafter", "prepared", "0", card, 1, host="here")
        self.n_committed = N_PROMPT
        self._script = script
        self._n_vocab = n_vocab
        prompt = np.random.default_rng(1).integers(0, n_vocab, N_PROMPT).tolist()
        self._chain = chain_start(prompt)
        self.opening = Open("lead", 1, self._chain, MAX_AHEAD, sampling, tuple(prompt))
        self._told: list[Draft] = []
        self._guesses: dict[int, list[int]] = {}  # by the chain hash before them
        self._n_commits = 0

    def start(self, listener: object) -> None:
        pass

    def send(self, to: str, message: Message) -> None:
        assert isinstance(message, Draft)
        self._told.append(message)

    def describe(self, presence: Presence) -> None:
        pass

    def close(self) -> None:
        pass

    def answer(self, *, idle: bool) -> Commit | None:
        """What it commits next, when enough guesses are there, or when the drafter makes no more."""
        for draft in self._told:
            chain = draft.chain
            for token in draft.tokens:
                self._guesses.setdefault(chain, []).append(token)
                chain = chain_next(chain, token)
        self._told.clear()
        path = self._agreed(READY)
        return self._commit(path[:PER_COMMIT]) if idle or len(path) >= READY else None

    def _agreed(self, most: int) -> list[int]:
        """The guesses that are what it says."""
        agreed, chain = list[int](), self._chain
        while len(agreed) < most:
            token = self._script.truth(self.n_committed + len(agreed))
            if token not in self._guesses.get(chain, ()):
                break
            agreed.append(token)
            chain = chain_next(chain, token)
        return agreed

    def _commit(self, right: list[int]) -> Commit:
        """These guesses, in every fourth commit fewer of them and a wrong one."""
        self._n_commits += 1
        if self._n_commits % 4 == 0 or not right:
            right = right[: PER_COMMIT // 2]
            right.append(self._instead(right))
        base = self.n_committed
        for token in right:
            self._chain = chain_next(self._chain, token)
        self.n_committed += len(right)
        return Commit(1, base, self._chain, tuple(right))

    def _instead(self, before: Sequence[int]) -> int:
        chain = functools.reduce(chain_next, before, self._chain)
        truth = self._script.truth(self.n_committed + len(before))
        others = [token for token in self._guesses.get(chain, ()) if token != truth]
        return others[0] if others else (truth + 2) % self._n_vocab


class _Watch(prepared.Watch):
    """On which every decode takes the same."""

    def decoded(self, spent_s: float, model_s: float) -> None:
        super().decoded(spent_s, DECODE_S)


class _Backend(prepared.PreparedBackend):
    n_seqs = N_SEQS


class Bench:
    """One session that is drafted for, turn by turn."""

    def __init__(self, rows: Logits, shape: str, sampling: SamplingParams, n_turns: int) -> None:
        self._watch = _Watch()
        n_ctx = N_PROMPT + (WARM_UP + n_turns) * (PER_COMMIT + 1) + 2 * MAX_AHEAD
        backend = _Backend(rows, n_ctx, self._watch)
        drafter = ModelDrafter(backend, n_branches=N_BRANCHES, steady=SHAPES[shape], clock=self._watch)
        self.lead = Lead(prepared.Script(rows, sampling), rows.shape[1], sampling)
        self.worker = Worker(self.lead, self.lead.drafter, drafter, clock=self._watch)
        self.worker.received(self.lead.opening)
        self._idle = False
        for _ in range(WARM_UP):
            self.turn()

    def turn(self, profile: cProfile.Profile | None = None) -> float:
        """Seconds outside decode of a turn that makes guesses. A profile records it, which slows it down."""
        while True:
            commit = self.lead.answer(idle=self._idle)
            if commit:
                self.worker.received(commit)
            decoded_s, n_drafted = self._watch.decoded_s, self.worker.n_drafted
            if profile:
                profile.enable()
            began = time.perf_counter()
            self.worker.turn(wait=False)
            spent_s = time.perf_counter() - began
            if profile:
                profile.disable()
            self._idle = self._watch.decoded_s == decoded_s
            if self.worker.n_drafted > n_drafted:
                return spent_s - (self._watch.decoded_s - decoded_s)


def measure(rows: Logits, shape: str, sampling: SamplingParams, n_turns: int) -> Cost:
    """One case."""
    bench = Bench(rows, shape, sampling, n_turns)
    gc.collect()
    before = bench.worker.n_drafted
    seconds = sorted(bench.turn() for _ in range(n_turns))
    n_guesses = (bench.worker.n_drafted - before) / n_turns
    at = (n_turns // 10, n_turns - 1 - n_turns // 10)
    fastest, slowest = (1e6 * seconds[i] for i in at)
    return Cost(1e6 * statistics.median(seconds), fastest, slowest, n_guesses)


def profiled(rows: Logits, shape: str, sampling: SamplingParams, n_turns: int) -> str:
    """The functions in which most of a turn is spent, by own time; decode, which is not the drafter's, is
    left out."""
    bench = Bench(rows, shape, sampling, n_turns)
    profile = cProfile.Profile()
    for _ in range(n_turns):
        bench.turn(profile)
    return by_own_time(profile, n_turns, "turn", {__file__, prepared.__file__})


# -- the program ----------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    shape: str
    way: str
    n_vocab: int

    def __str__(self) -> str:
        return f"{self.shape}; {self.way}; {self.n_vocab}"

    def rows(self) -> Logits:
        return make_rows(self.n_vocab)


@functools.cache
def make_rows(n_vocab: int) -> Logits:
    """Logits as a small model has them in easy text: probabilities fall with a power of the rank. The
    likeliest token has .6 to .996 of it, and 4 to 400 tokens are within 12 of the largest logit."""
    rng = np.random.default_rng(0)
    falling = -np.log(np.arange(1, n_vocab + 1))
    rows = [rng.permutation(STEEPNESS[i % len(STEEPNESS)] * falling) for i in range(prepared.N_ROWS)]
    return np.array(rows, np.float32)


def cases(vocabularies: Sequence[int], only: str = "") -> list[Case]:
    """All whose name has `only` in it."""
    every = [Case(shape, way, n) for shape in SHAPES for way in WAYS for n in vocabularies]
    return [case for case in every if only in str(case)]


def table(costs: dict[Case, Cost]) -> str:
    """Markdown: what is drafted and sampling by vocabulary; median, fastest and slowest tenth."""
    sizes = sorted({case.n_vocab for case in costs})
    lines = [
        f"| drafted | sampling | guesses a turn | {' | '.join(f'{n} tokens' for n in sizes)} |",
        f"| --- | --- |{' ---: |' * (1 + len(sizes))}",
    ]
    for shape, way in dict.fromkeys((case.shape, case.way) for case in costs):
        row = {case.n_vocab: cost for case, cost in costs.items() if (case.shape, case.way) == (shape, way)}
        n_guesses = statistics.mean(cost.n_guesses for cost in row.values())
        cells = [_cell(row[n]) if n in row else "-" for n in sizes]
        lines.append(f"| {shape} | {way} | {n_guesses:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(cost: Cost) -> str:
    return f"{cost.us:.0f} ({cost.us_fastest:.0f} to {cost.us_slowest:.0f})"


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.drafting", description="Microseconds of Python in a drafter's turn."
    )
    parser.add_argument("--turns", type=int, default=1000, help="turns of each case")
    parser.add_argument("--vocabularies", type=_sizes, default=[4_096, 150_000], help="such as 4096,150000")
    parser.add_argument("--only", default="", help="cases with this in their name, as --profile shows it")
    parser.add_argument("--profile", action="store_true", help="also show where the time of each case goes")
    parser.add_argument("--append", type=Path, help="append the result to this markdown file")
    return parser


def _sizes(text: str) -> list[int]:
    sizes = [int(part) for part in text.split(",")]
    if min(sizes) < 300:
        raise ValueError(text)
    return sizes


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    parser = _flags()
    args = parser.parse_args(arguments)
    chosen = cases(args.vocabularies, args.only)
    if not chosen or args.turns < 1:
        parser.error("nothing to measure")
    costs: dict[Case, Cost] = {}
    for case in chosen:
        costs[case] = measure(case.rows(), case.shape, WAYS[case.way], args.turns)
        print(f"{case}: {_cell(costs[case])} µs", flush=True)
    what = (
        f"Microseconds of a turn outside decode, medians over {args.turns} turns for one session, "
        f"{N_PROMPT} tokens and more in its context; in brackets the fastest and the slowest tenth."
    )
    parts = [what, table(costs)]
    for case in chosen if args.profile else ():
        shown = profiled(case.rows(), case.shape, WAYS[case.way], args.turns)
        parts.append(f"{case}, by cProfile, which makes small functions look larger:\n\n```\n{shown}\n```")
    text = report.section("Python's share of a guess", "benchmarks.drafting", arguments, parts)
    report.publish(text, args.append)
    return 0


if __name__ == "__main__":
    sys.exit(main())
