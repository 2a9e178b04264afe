"""Run a draft model inside the lead under a virtual clock: `python -m benchmarks.inside`.

Draft model, engine and proposer are real. The target repeats texts that it has written before. MACHINES gives
the time of a step of n rows, of a guess, and of a row of the draft model's prompts. So results have no noise,
and the gate's decisions can be compared with a fixed rule.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from benchmarks import program, report, texts
from benchmarks.clocked import CLOCKED_BATCH, DRAFT_MAX, LEAVES, MOST_AT_ONCE, MOST_ROWS, Reciter, told
from benchmarks.machines import MACHINES, Machine
from benchmarks.prompts import PYTHON, hard, load
from benchmarks.texts import N_CELLS, N_SEQS, WAYS, Text, write
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Finished, Stats
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.sampling.draft_token import DraftGuess
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.speculator import Speculator
from server.speculation.step_times import StepTimes
from tests.benchmarks.virtual import World
from tests.paced import Stream

SHORTEST = 20  # tokens of a reply
HARD = 1.1  # times plain steps: replies below are hard to guess
SLOW = 0.95  # times plain steps: replies below are slower than they should be
FIXED_MAX, FIXED_P = 12, 0.5
GAPS = "p95 gap of steps, by plain", "of tokens", "of tokens as a stream tells them"


class Fixed(DraftModel):
    """A rule that guesses up to FIXED_MAX tokens while each has at least FIXED_P."""

    most = FIXED_MAX

    def guess(self, sessions: Sequence[int], *, second: bool, timed: bool = True) -> list[DraftGuess | None]:
        guesses = super().guess(sessions, second=second, timed=timed)
        return [guess if guess and guess.confidence >= FIXED_P else None for guess in guesses]


def plain(draft: LlamaBackend, world: World, times: StepTimes) -> Speculator:
    return Speculator(Policy(lookup=False), times=times, clock=world.clock)


def decided(draft: LlamaBackend, world: World, times: StepTimes) -> Speculator:
    policy = Policy(leaves=LEAVES, lookup=False, max_rows=MOST_ROWS)
    inline = DraftModel(draft, clock=world.clock)
    return Speculator(policy, inline=inline, times=times, clock=world.clock)


def looked_up(draft: LlamaBackend, world: World, times: StepTimes) -> Speculator:
    policy = Policy(leaves=LEAVES, max_rows=MOST_ROWS)
    return Speculator(policy, times=times, clock=world.clock)


def fixed(draft: LlamaBackend, world: World, times: StepTimes) -> Speculator:
    policy, inline = Policy(leaves=1, lookup=False, gate=False), Fixed(draft, clock=world.clock)
    return Speculator(policy, inline=inline, times=times, clock=world.clock)


KINDS = {
    "plain": plain,
    "as duo decides": decided,
    "lookups alone": looked_up,
    f"{FIXED_MAX} of {FIXED_P}": fixed,
}


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of a run."""

    replies: list[tuple[int, float]]  # tokens and seconds of each reply after its first token
    seconds: float  # of all replies together
    gaps: list[float]  # seconds between two tokens of a reply, 0 within a step
    told: list[float]  # the same in a stream


class Lead:
    """A lead that generates the texts and keeps what it has learnt."""

    def __init__(
        self,
        draft: LlamaBackend,
        known: Sequence[Text],
        machine: Machine,
        kind: Callable[[LlamaBackend, World, StepTimes], Speculator],
        n_slots: int,
    ) -> None:
        self._draft, self._known, self._machine, self._n_slots = draft, known, machine, n_slots
        self._world, self._live = World(), set[int]()
        self._n_asked = 0
        self._times: dict[int, list[float]] = {}
        self._streams: dict[int, Stream] = {}
        self._ends: dict[int, Stats] = {}
        target = Reciter(known, draft.vocab, lambda n: self._world.advance(round(1e6 * machine.step_s(n))))
        target.n_seqs, target.n_ctx = LEAVES * n_slots, N_CELLS * n_slots
        target.n_cells = target.n_ctx
        most = MOST_ROWS * n_slots
        calibrated = {n: machine.step_s(n) for n in range(1, most + 1)}
        self._engine = Engine(
            target,
            kind(draft, self._world, StepTimes(most, calibrated)),
            self._happened,
            n_slots=n_slots,
            limits=Limits(n_batch=CLOCKED_BATCH, draft_max=DRAFT_MAX, leaves=LEAVES),
            clock=self._world.clock,
        )

    def say(self, at_once: int) -> Timed:
        """Generate all texts, at_once at a time."""
        self._times, self._streams, self._ends, began = {}, {}, {}, self._world.clock()
        waiting = list(reversed(self._known))
        most = at_once if at_once < self._n_slots else len(self._known)  # the engine's queue holds the rest
        machine, world = self._machine, self._world
        with told(self._draft, lambda n: world.advance(round(1e3 * (machine.td + (n - 1) * machine.row)))):
            while waiting or self._live:
                while waiting and len(self._live) < most:
                    self._ask(waiting.pop())
                self._engine.step()
        ends = [self._ends[id] for id in sorted(self._ends)]
        replies = [(end.n_predicted - 1, end.predicted_ms / 1e3) for end in ends]
        gaps = [b - a for times in self._times.values() for a, b in pairwise(times)]
        as_told = [gap for stream in self._streams.values() for gap in stream.gaps]
        return Timed(replies, world.clock() - began, gaps, as_told)

    def close(self) -> None:
        """Empty the draft model's KV cache for the next lead."""
        for seq in range(self._draft.n_seqs):
            self._draft.trim(seq, 0)

    def _ask(self, text: Text) -> None:
        prompt, self._n_asked = text.tokens[: text.n_prompt], self._n_asked + 1
        self._live.add(self._n_asked)
        request = GenerationRequest(prompt, text.sampling, len(text.tokens) - text.n_prompt)
        self._engine.submit(self._n_asked, request)

    def _happened(self, id: int, event: Event) -> None:
        if isinstance(event, Committed):
            now, n = self._world.clock(), len(event.tokens)
            self._times.setdefault(id, []).extend([now] * n)
            self._streams.setdefault(id, Stream()).step(now, n, event.undrafted_s)
        elif isinstance(event, Finished):
            self._live.discard(id)
            self._streams[id].end(self._world.clock())
            self._ends[id] = event.stats


def run(
    draft: LlamaBackend,
    known: Sequence[Text],
    machine: Machine,
    kind: Callable[[LlamaBackend, World, StepTimes], Speculator],
    *at_once: int,
) -> list[Timed]:
    """Have a new lead generate the texts, at_once[0] at a time, then at_once[1] at a time, and so on."""
    with closing(Lead(draft, known, machine, kind, max(at_once))) as lead:
        return [lead.say(n) for n in at_once]


def measure(args: argparse.Namespace) -> program.Result:
    """Run the virtual clock and return the section. Raises DuoError."""
    lead = LlamaOptions(args.model, N_CELLS, N_SEQS, n_threads=args.threads)
    most = max(MOST_AT_ONCE, *args.sessions, *args.in_turn)
    drafting = LlamaOptions(args.draft_model, N_CELLS * 2, most, n_threads=args.threads)
    parts: list[str] = []
    with closing(LlamaBackend(lead)) as target, closing(LlamaBackend(drafting)) as draft:
        known = _known(target, args)
        for name, machine in MACHINES.items():
            timed = {kind: run(draft, known, machine, KINDS[kind], 1)[0] for kind in KINDS}
            alone = _rates(timed["plain"].replies)
            rows = [[kind, *_cells(found.replies, alone)] for kind, found in timed.items()]
            heads = [
                "guesses",
                "t/s in all",
                "median",
                "slowest by plain",
                f"below {SLOW}",
                "hard ones by plain",
            ]
            parts += [f"{name}, {len(known)} replies of at most {args.max_tokens} tokens."]
            parts += [report.table(heads, rows, n_words=1)]
            rows = [
                [str(n), *_beside(*(run(draft, known, machine, kind, n)[0] for kind in (plain, decided)))]
                for n in args.sessions
            ]
            parts += [
                report.table(["at once", "plain, t/s", "as duo decides", "ratio", *GAPS], rows, n_words=0)
            ]
            alone, found = (run(draft, known, machine, kind, *args.in_turn) for kind in (plain, decided))
            ratios = [f"{one.seconds / other.seconds:.2f}" for one, other in zip(alone, found, strict=True)]
            parts += [f"One lead, {', then '.join(map(str, args.in_turn))} at once: {', '.join(ratios)}."]
    return "a draft model inside the lead", parts


def _known(target: LlamaBackend, args: argparse.Namespace) -> list[Text]:
    """Return the texts to generate: replies to --prompts at temperature 0.

    With --every-way, return replies in every way of sampling, also to prompts that are hard to guess.
    """
    asked = load(args.prompts, PYTHON)
    if args.every_way:
        easy, poor = texts.prompt_ids(target, asked), texts.prompt_ids(target, hard())
        written = [text for way in WAYS.values() for text in write(target, easy + poor, way, args.max_tokens)]
        random.Random(5).shuffle(written)
    else:
        written = write(target, texts.prompt_ids(target, asked), WAYS["temperature 0"], args.max_tokens)
    return [text for text in written if len(text.tokens) - text.n_prompt > SHORTEST]


def _beside(plain: Timed, decided: Timed) -> list[str]:
    """Return the cells of all replies together, their prompts included."""
    rates = [sum(n + 1 for n, _ in timed.replies) / timed.seconds for timed in (plain, decided)]
    usual = np.percentile(plain.gaps, 95)
    found = [gap for gap in decided.gaps if gap], decided.gaps, decided.told
    gains = rates[1] / rates[0], *(np.percentile(gaps, 95) / usual for gaps in found)
    return [f"{rates[0]:.1f}", f"{rates[1]:.1f}", *(f"{gain:.2f}" for gain in gains)]


def _rates(replies: Sequence[tuple[int, float]]) -> list[float]:
    """Return each reply's tokens/s; infinite if it came whole in the step that ended its prompt."""
    return [n / seconds if seconds else math.inf for n, seconds in replies]


def _cells(replies: Sequence[tuple[int, float]], alone: Sequence[float]) -> list[str]:
    ratios = [rate / own for rate, own in zip(_rates(replies), alone, strict=True)]
    poor = [i for i, ratio in enumerate(ratios) if ratio < HARD]
    without = sum(replies[i][0] / alone[i] for i in poor)
    together = without / sum(replies[i][1] for i in poor) if poor else 1.0
    total = sum(n for n, _ in replies) / sum(seconds for _, seconds in replies)
    slowest, n_slow = f"{min(ratios):.2f}", str(sum(ratio < SLOW for ratio in ratios))
    return [f"{total:.1f}", f"{median(_rates(replies)):.1f}", slowest, n_slow, f"{together:.2f}"]


def _parser() -> argparse.ArgumentParser:
    shared = ("model", "draft-model", "threads", "prompts", "max-tokens")
    what = "A draft model inside the lead, under a virtual clock."
    parser = program.make_parser("inside", what, *shared, prompts=None, max_tokens=150)
    parser.add_argument("--sessions", type=program.numbers, default=[1, 4, 16], help="at once")
    parser.add_argument("--in-turn", type=program.numbers, default=[1, 4, 16], help="at once, one lead")
    every_way = "sampled in every way, and with ten prompts whose drafts are poor"
    parser.add_argument("--every-way", action="store_true", help=every_way)
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
