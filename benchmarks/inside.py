"""A draft model inside the lead under a virtual clock: `python -m benchmarks.inside`.

The draft model is real, and so are engine and proposer; the target says the texts that it has said before.
A step of n rows takes what MACHINES says, as do a guess and a row of the draft model's prompts. So nothing
is noise, and what the gate decides can be compared with a fixed rule.
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
from benchmarks.clocked import DRAFT_MAX, LEAVES, MOST_AT_ONCE, MOST_ROWS, N_BATCH, Reciter, told
from benchmarks.machines import MACHINES, Machine
from benchmarks.prompts import hard, load
from benchmarks.temperature import N_CELLS, N_SEQS, WAYS, Text, write
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Finished
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.sampling.draft_token import DraftGuess
from server.speculation.gating.costs import StepCosts
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.sources.synchronous import Synchronous
from server.speculation.speculated import Speculated
from server.speculation.speculator import Speculator
from tests.benchmarks.virtual import World

SHORTEST = 20  # tokens of a reply
HARD = 1.1  # times plain steps: replies below are hard to guess
SLOW = 0.95  # times plain steps: replies below are slower than they should be
FIXED_MAX, FIXED_P = 12, 0.5
GAPS = "p95 gap of steps, by plain", "of tokens"


class Fixed(Synchronous):
    """Guesses up to FIXED_MAX tokens while the draft model gives each at least FIXED_P."""

    def _going(self, curve: Sequence[float], rows: int, rate: float) -> list[int]:
        return [id for id, path in self._paths.items() if len(path.tokens) < min(FIXED_MAX, path.limit)]

    def _graft(self, session: int, guess: DraftGuess | None, speculated: Speculated) -> None:
        super()._graft(session, guess if guess and guess.confidence >= FIXED_P else None, speculated)


def plain(draft: LlamaBackend, world: World, costs: StepCosts) -> Speculator:
    return Speculator(Policy(lookup=False), costs=costs, clock=world.clock)


def decided(draft: LlamaBackend, world: World, costs: StepCosts) -> Speculator:
    policy = Policy(leaves=LEAVES, lookup=False, max_rows=MOST_ROWS)
    inline = DraftModel(draft, clock=world.clock)
    return Speculator(policy, inline=inline, costs=costs, clock=world.clock)


def looked_up(draft: LlamaBackend, world: World, costs: StepCosts) -> Speculator:
    policy = Policy(leaves=LEAVES, max_rows=MOST_ROWS)
    return Speculator(policy, costs=costs, clock=world.clock)


def fixed(draft: LlamaBackend, world: World, costs: StepCosts) -> Speculator:
    policy, inline = Policy(leaves=1, lookup=False, gate=False), DraftModel(draft, clock=world.clock)
    speculator = Speculator(policy, inline=inline, costs=costs, clock=world.clock)
    speculator._inline = Fixed(inline, policy, world.clock, float)  # pyright: ignore[reportPrivateUsage]
    return speculator


KINDS = {
    "plain": plain,
    "as duo decides": decided,
    "lookups alone": looked_up,
    f"{FIXED_MAX} of {FIXED_P}": fixed,
}


@dataclass(frozen=True, slots=True)
class Timed:
    """replies: tokens and seconds of each after its first token; seconds: of all of them together; gaps:
    seconds between two tokens of a reply, 0 for those of one step."""

    replies: list[tuple[int, float]]
    seconds: float
    gaps: list[float]


def run(
    draft: LlamaBackend,
    known: Sequence[Text],
    machine: Machine,
    kind: Callable[[LlamaBackend, World, StepCosts], Speculator],
    at_once: int = 1,
) -> Timed:
    """Have the texts said, at_once at a time."""
    world, events, times = World(), list[tuple[int, Event]](), dict[int, list[float]]()
    target = Reciter(known, draft.vocab, lambda n: world.advance(round(1e6 * machine.step_s(n))))
    target.n_seqs, target.n_ctx = LEAVES * at_once, N_CELLS * at_once
    target.n_cells = target.n_ctx
    most = MOST_ROWS * at_once
    calibrated = {n: machine.step_s(n) for n in range(1, most + 1)}
    speculator = kind(draft, world, StepCosts(most, calibrated))

    def happened(id: int, event: Event) -> None:
        events.append((id, event))
        if isinstance(event, Committed):
            times.setdefault(id, []).extend([world.clock()] * len(event.tokens))

    engine = Engine(
        target,
        speculator,
        happened,
        n_slots=at_once,
        limits=Limits(n_batch=N_BATCH, draft_max=DRAFT_MAX, leaves=LEAVES),
        clock=world.clock,
    )
    with told(draft, lambda n: world.advance(round(1e3 * (machine.td + (n - 1) * machine.row)))):
        for id, text in enumerate(known):
            prompt = text.tokens[: text.n_prompt]
            engine.submit(id, GenerationRequest(prompt, text.sampling, len(text.tokens) - text.n_prompt))
        while engine.step():
            pass
    for seq in range(draft.n_seqs):
        draft.trim(seq, 0)
    ends = {id: event.stats for id, event in events if isinstance(event, Finished)}
    replies = [(ends[id].n_predicted - 1, ends[id].predicted_ms / 1e3) for id in sorted(ends)]
    gaps = [b - a for known_times in times.values() for a, b in pairwise(known_times)]
    return Timed(replies, world.clock(), gaps)


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    lead = LlamaOptions(args.model, N_CELLS, N_SEQS, n_threads=args.threads)
    most = max(MOST_AT_ONCE, *args.sessions)
    drafting = LlamaOptions(args.draft_model, N_CELLS * 2, most, n_threads=args.threads)
    parts: list[str] = []
    with closing(LlamaBackend(lead)) as target, closing(LlamaBackend(drafting)) as draft:
        known = _known(target, args)
        for name, machine in MACHINES.items():
            timed = {kind: run(draft, known, machine, KINDS[kind]) for kind in KINDS}
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
                [str(n), *_beside(*(run(draft, known, machine, kind, n) for kind in (plain, decided)))]
                for n in args.sessions
            ]
            parts += [
                report.table(["at once", "plain, t/s", "as duo decides", "ratio", *GAPS], rows, n_words=0)
            ]
    return "a draft model inside the lead", parts


def _known(target: LlamaBackend, args: argparse.Namespace) -> list[Text]:
    """The texts that are said: of --prompts at temperature 0, or, mixed, of these and of prompts that are
    hard to guess in every way of sampling."""
    asked = load(args.prompts)
    if args.every_way:
        easy, poor = texts.prompt_ids(target, asked), texts.prompt_ids(target, hard())
        written = [text for way in WAYS.values() for text in write(target, easy + poor, way, args.max_tokens)]
        random.Random(5).shuffle(written)
    else:
        written = write(target, texts.prompt_ids(target, asked), WAYS["temperature 0"], args.max_tokens)
    return [text for text in written if len(text.tokens) - text.n_prompt > SHORTEST]


def _beside(plain: Timed, decided: Timed) -> list[str]:
    """Of all replies together, prompts included."""
    rates = [sum(n + 1 for n, _ in timed.replies) / timed.seconds for timed in (plain, decided)]
    steps, tokens = (
        np.percentile(decided.gaps if with_none else [gap for gap in decided.gaps if gap], 95)
        / np.percentile(plain.gaps, 95)
        for with_none in (False, True)
    )
    gains = rates[1] / rates[0], steps, tokens
    return [f"{rates[0]:.1f}", f"{rates[1]:.1f}", *(f"{gain:.2f}" for gain in gains)]


def _rates(replies: Sequence[tuple[int, float]]) -> list[float]:
    """Infinite where a reply came with its first token, in the step that ended its prompt."""
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
    parser.add_argument("--sessions", type=program.numbers, default=[4, 16], help="at once")
    every_way = "sampled in every way, and with ten prompts whose drafts are poor"
    parser.add_argument("--every-way", action="store_true", help=every_way)
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
