"""A draft model inside the lead under a virtual clock: `python -m benchmarks.inside`.

The draft model is real, and so are engine and proposer; the target says the texts that it has said before. A
step of n rows takes what CURVE says, a guess --td-ms. So nothing is noise, and what the gate decides can be
compared with a fixed rule.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from statistics import median

import numpy as np

from benchmarks import program, report, texts
from benchmarks.clocked import DRAFT_MAX, LEAVES, MOST_AT_ONCE, N_BATCH, Reciter, told
from benchmarks.prompts import load
from benchmarks.temperature import N_CELLS, N_SEQS, WAYS, Text, write
from server.engine.engine import Engine
from server.engine.events import Event, Finished
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

CURVE = {1: 24.6, 2: 43.1, 4: 56.8, 5: 63.0, 8: 78.7, 9: 83.6, 16: 125.2}  # 400M BF16, 2 threads
MOST_ROWS = 1 + 2 * DRAFT_MAX
SHORTEST = 20  # tokens of a reply
HARD = 1.1  # times plain steps: replies below are hard to guess
FIXED_MAX, FIXED_P = 12, 0.5


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


def fixed(draft: LlamaBackend, world: World, costs: StepCosts) -> Speculator:
    policy, inline = Policy(leaves=1, lookup=False, gate=False), DraftModel(draft, clock=world.clock)
    speculator = Speculator(policy, inline=inline, costs=costs, clock=world.clock)
    speculator._inline = Fixed(inline, policy, world.clock)  # pyright: ignore[reportPrivateUsage]
    return speculator


KINDS = {"plain": plain, "as duo decides": decided, f"{FIXED_MAX} of {FIXED_P}": fixed}


def run(
    draft: LlamaBackend,
    known: Sequence[Text],
    step_s: Callable[[int], float],
    td_s: float,
    kind: Callable[[LlamaBackend, World, StepCosts], Speculator],
) -> list[tuple[int, float]]:
    """Tokens and seconds of each reply after its first token, one after the other."""
    world, events = World(), list[tuple[int, Event]]()
    target = Reciter(known, draft.vocab, lambda n: world.advance(round(1e6 * step_s(n))))
    speculator = kind(draft, world, StepCosts(MOST_ROWS, {n: step_s(n) for n in range(1, MOST_ROWS + 1)}))
    engine = Engine(
        target,
        speculator,
        lambda id, event: events.append((id, event)),
        n_slots=1,
        limits=Limits(n_batch=N_BATCH, draft_max=DRAFT_MAX, leaves=LEAVES),
        clock=world.clock,
    )
    with told(draft, lambda n: world.advance(round(1e6 * td_s))):
        for id, text in enumerate(known):
            prompt = text.tokens[: text.n_prompt]
            engine.submit(id, GenerationRequest(prompt, text.sampling, len(text.tokens) - text.n_prompt))
        while engine.step():
            pass
    for seq in range(draft.n_seqs):
        draft.trim(seq, 0)
    ends = {id: event.stats for id, event in events if isinstance(event, Finished)}
    return [(ends[id].n_predicted - 1, ends[id].predicted_ms / 1e3) for id in sorted(ends)]


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    rows_known = sorted(CURVE)
    slope = (CURVE[rows_known[-1]] - CURVE[rows_known[-2]]) / (rows_known[-1] - rows_known[-2])

    def step_s(n: int) -> float:
        beyond = max(0, n - rows_known[-1]) * slope
        return (float(np.interp(n, rows_known, [CURVE[row] for row in rows_known])) + beyond) / 1e3

    lead = LlamaOptions(args.model, N_CELLS, N_SEQS, n_threads=args.threads)
    drafting = LlamaOptions(args.draft_model, N_CELLS, MOST_AT_ONCE, n_threads=args.threads)
    with closing(LlamaBackend(lead)) as target, closing(LlamaBackend(drafting)) as draft:
        prompts = texts.prompt_ids(target, load(args.prompts))
        written = write(target, prompts, WAYS["temperature 0"], args.max_tokens)
        known = [text for text in written if len(text.tokens) - text.n_prompt > SHORTEST]
        timed = {name: run(draft, known, step_s, args.td_ms / 1e3, kind) for name, kind in KINDS.items()}
    alone = _rates(timed["plain"])
    rows = [[name, *_cells(replies, alone)] for name, replies in timed.items()]
    heads = ["guesses", "t/s in all", "median", "slowest by plain", "hard ones by plain"]
    what = f"{len(known)} replies of at most {args.max_tokens} tokens; {args.td_ms} ms a guess."
    return "a draft model inside the lead", [what, report.table(heads, rows, n_words=1)]


def _rates(replies: Sequence[tuple[int, float]]) -> list[float]:
    return [n / seconds for n, seconds in replies]


def _cells(replies: Sequence[tuple[int, float]], alone: Sequence[float]) -> list[str]:
    ratios = [rate / own for rate, own in zip(_rates(replies), alone, strict=True)]
    hard = [i for i, ratio in enumerate(ratios) if ratio < HARD]
    without = sum(replies[i][0] / alone[i] for i in hard)
    together = without / sum(replies[i][1] for i in hard) if hard else 1.0
    total = sum(n for n, _ in replies) / sum(seconds for _, seconds in replies)
    return [f"{total:.1f}", f"{median(_rates(replies)):.1f}", f"{min(ratios):.2f}", f"{together:.2f}"]


def _parser() -> argparse.ArgumentParser:
    shared = ("model", "draft-model", "threads", "prompts", "max-tokens")
    what = "A draft model inside the lead, under a virtual clock."
    parser = program.make_parser("inside", what, *shared, prompts=None, max_tokens=150)
    parser.add_argument("--td-ms", type=float, default=1.7, help="milliseconds of a guess")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
