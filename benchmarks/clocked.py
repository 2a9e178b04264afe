"""Run a pair of models under a virtual clock: `python -m benchmarks.clocked [--r 4,8,16 --sessions 1,4]`.

Draft model, drafter, worker, engine and proposer are real. The target repeats texts that it has written
before, at any speed. A step of the lead takes tt, and STEP_ROW tt more for each row beyond the first. A
decode of the drafter takes td = tt / r, and DRAFT_ROW td more for each row beyond the first. A message takes
--latency-ms. So results have no noise, and any ratio of speeds can be tried. The lead verifies all guesses,
without lookups. With --machine, steps take the times of that machine in benchmarks.machines; the lead then
uses lookups, and verifies only guesses that pay.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import Any

import numpy as np

from benchmarks import program, report, texts
from benchmarks.machines import MACHINES, Machine
from benchmarks.prepared import DirectBus, PreparedBackend, Watch
from benchmarks.prompts import PYTHON, load
from benchmarks.texts import N_CELLS, N_SEQS, WAYS, Text, write
from server.drafting.model_drafter import ModelDrafter
from server.engine.engine import Engine
from server.engine.events import Event, Finished
from server.engine.proposer import Upcoming
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.backend import Backend, Batch, Logits, Vocabulary
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.shapes import Shapes
from server.speculation.policy import Policy
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.step import DraftPlan
from server.speculation.step_times import StepTimes
from server.speculation.wire.messages import Message, decode, encode
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.benchmarks.virtual import LEAD, TT_US, World

STEP_ROW = 0.03  # 1.5 tt for 17 rows, as 8B F16 on an H200. Twice: guesses gain less
DRAFT_ROW = 0.1  # 1.2 td for 3 rows, as 1B on an H200. Twice: alternatives gain less
DRAFT_MAX, LEAVES, N_BRANCHES = 64, 3, 8  # the defaults of duo
MOST_AT_ONCE = 8
MOST_ROWS = 1 + 2 * DRAFT_MAX
CLOCKED_BATCH = 512
CERTAIN = 1000.0  # logit of what is said, beside 0: no noise is as large


class Reciter(PreparedBackend):
    """A target that continues the known text with which a sequence begins."""

    def __init__(self, known: Sequence[Text], vocab: Vocabulary, decoded: Callable[[int], None]) -> None:
        """Call `decoded` with the row count of each decode."""
        n_ctx = N_CELLS * MOST_AT_ONCE
        super().__init__(np.zeros((1, vocab.size), np.float32), n_ctx, Watch(), n_seqs=LEAVES * MOST_AT_ONCE)
        self.vocab, self.n_batch = vocab, CLOCKED_BATCH
        self._out = np.zeros((CLOCKED_BATCH, vocab.size), np.float32)
        self._known, self.told = known, decoded
        self._held: dict[int, list[int]] = {}

    def decode(self, batch: Batch) -> Logits:
        said = list[int]()
        for i, (token, position, seq) in enumerate(
            zip(batch.tokens, batch.positions, batch.seqs, strict=True)
        ):
            for one in batch.shared.get(i, (seq,)):
                self._held.setdefault(one, [])[position:] = [token]
            if batch.wanted[i]:
                said.append(self._next(tuple(self._held[seq])))
        out = self._out[: len(said)]
        out.fill(0.0)
        out[range(len(said)), said] = CERTAIN
        self.told(len(batch))
        return out

    def _next(self, held: tuple[int, ...]) -> int:
        n = len(held)
        found = (text.tokens[n] for text in self._known if n < len(text.tokens) and text.tokens[:n] == held)
        return next(found, 0)

    def length(self, seq: int) -> int:
        return len(self._held.get(seq, ()))

    def trim(self, seq: int, length: int) -> None:
        del self._held.setdefault(seq, [])[length:]

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._held.setdefault(target, [])[start:] = self._held[source][start:end]


class ClockedDrafter(DirectBus):
    """A worker that makes r guesses in the time of a plain step, in a world of its own.

    A turn takes as long as its decodes. The worker reads messages at its next turn, and its own messages
    leave at the end of a turn. shapes: decode times that the drafter knows; by default the real ones. tt_us:
    microseconds of the lead's plain step. latency_us: microseconds of a message, each way.
    """

    def __init__(
        self,
        backend: Backend,
        r: float,
        shapes: Shapes | None = None,
        *,
        tt_us: int = TT_US,
        latency_us: int = 0,
    ) -> None:
        self.world, self.backend, self.tt_us = World(), backend, tt_us
        self._td_us = td_us = tt_us / r
        self._latency_us = latency_us
        self._turn_us, self._asleep = 0, True
        card = vocabulary_card(backend.vocab)
        presence = Presence("drafter", "drafter", "draft", "0", card, MOST_AT_ONCE, kernel="there")
        steady = {n: td_us * (1 + DRAFT_ROW * (n - 1)) / 1e6 for n in (1, 2, 3)}
        shapes = shapes or Shapes(steady, steady)
        drafter = ModelDrafter(backend, n_branches=N_BRANCHES, shapes=shapes, clock=self._clock)
        super().__init__(presence, drafter, self._clock)

    def send(self, to: str, message: Message) -> None:
        if to != self.presence.id:
            delay_us = self._turn_us + self._latency_us
            self.world.after(delay_us, lambda: self.lead.received(decode(encode(message))))
        elif self._latency_us:
            self.world.after(self._latency_us, lambda: self._hear(message))
        else:
            self._hear(message)

    def _hear(self, message: Message) -> None:
        self.worker.received(decode(encode(message)))
        if self._asleep:
            self._asleep = False
            self.world.after(0, self._turn)

    def decoded(self, n_rows: int) -> None:
        self._turn_us += round(self._td_us * (1 + DRAFT_ROW * (n_rows - 1)))

    def work(self) -> None:
        """Take one turn."""
        self.worker.turn(wait=False)

    def _turn(self) -> None:
        self.work()
        self._asleep = not self._turn_us
        if not self._asleep:
            self.world.after(self._turn_us, self._turn)
        self._turn_us = 0

    def _clock(self) -> float:
        return self.world.clock() + self._turn_us / 1e6


class CountingSpeculator(Speculator):
    """A speculator that counts steps by session, and those of them without any guess."""

    n_steps = n_empty = 0

    def plan(self, step: Upcoming) -> DraftPlan:
        plan = super().plan(step)
        self.n_steps += plan.asked * step.n_deciding
        self.n_empty += plan.asked * step.n_deciding - sum(bool(proposal) for proposal in plan.proposals)
        return plan


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a run."""

    rates: Mapping[int, float]  # tokens per tt, by text
    speedup: float  # tokens per tt of all texts, their times added
    per_step: float  # tokens of a step, by session
    empty: float  # share of these steps without a guess


def run(
    drafter: ClockedDrafter, known: Sequence[Text], at_once: int, machine: Machine | None = None
) -> Found:
    """Generate the texts, at_once at a time, and leave the draft model's KV cache empty.

    machine: Gives the times of steps, tt_us for one row. The lead then uses lookups, and verifies only
    guesses that pay. None: it verifies all guesses.
    """
    world, draft, vocab = drafter.world, drafter.backend, drafter.backend.vocab
    tt_us = drafter.tt_us

    def step_us(n: int) -> int:
        return round(1e6 * machine.step_s(n)) if machine else round(tt_us * (1 + STEP_ROW * (n - 1)))

    target = Reciter(known, vocab, lambda n: world.advance(step_us(n)))
    lead = Presence(LEAD.id, "lead", "texts", "0", vocabulary_card(vocab), MOST_AT_ONCE, kernel="here")
    remote = RemoteDrafters(drafter, lead, max_ahead=2 * DRAFT_MAX, clock=world.clock)
    drafter.start(remote)
    most = MOST_ROWS * at_once
    policy = Policy(leaves=LEAVES, lookup=bool(machine), gate=bool(machine), max_rows=most)
    times = StepTimes(most, {n: step_us(n) / 1e6 for n in range(1, most + 1)})
    speculator = CountingSpeculator(policy, remote=remote, times=times, clock=world.clock)
    events: list[tuple[int, Event]] = []
    limits = Limits(n_batch=CLOCKED_BATCH, draft_max=DRAFT_MAX, leaves=LEAVES)
    engine = Engine(
        target,
        speculator,
        lambda id, event: events.append((id, event)),
        n_slots=at_once,
        limits=limits,
        clock=world.clock,
    )
    with told(draft, drafter.decoded):
        for first in range(0, len(known), at_once):
            for id, text in enumerate(known[first : first + at_once], start=first):
                prompt, n = text.tokens[: text.n_prompt], len(text.tokens) - text.n_prompt
                engine.submit(id, GenerationRequest(prompt, text.sampling, n))
            world.advance()
            while engine.step():
                world.advance()
    for seq in range(draft.n_seqs):
        draft.trim(seq, 0)
    ends = {id: event.stats for id, event in events if isinstance(event, Finished)}
    n_tokens = {id: len(known[id].tokens) - known[id].n_prompt - 1 for id in ends}
    plain_us = step_us(at_once) if machine else tt_us
    n_tt = {id: 1000 * stats.predicted_ms / plain_us for id, stats in ends.items() if n_tokens[id]}
    total, n_steps = sum(n_tokens.values()), speculator.n_steps
    rates = {id: n_tokens[id] / n for id, n in n_tt.items()}
    return Found(rates, total / sum(n_tt.values()), total / n_steps, speculator.n_empty / n_steps)


@contextmanager
def told(backend: Backend, decoded: Callable[[int], None]) -> Generator[None]:
    """Call `decoded` with the row count of each decode."""
    plain = backend.decode

    def decode(batch: Batch) -> Logits:
        logits = plain(batch)
        decoded(len(batch))
        return logits

    backend.decode = decode
    yield
    backend.decode = plain


def slowest(rates: Mapping[int, float], at_once: int) -> float:
    """Return min rate / mean rate of each group of at_once texts, averaged."""
    groups: dict[int, list[float]] = {}
    for id, rate in rates.items():
        groups.setdefault(id // at_once, []).append(rate)
    return mean(min(group) / mean(group) for group in groups.values())


@contextmanager
def pair(args: argparse.Namespace) -> Generator[tuple[Backend, Backend]]:
    """Yield the target and the draft model. Raises DuoError."""
    n_seqs = MOST_AT_ONCE + N_BRANCHES
    options = [
        LlamaOptions(args.model, N_CELLS, N_SEQS, n_threads=args.threads),
        LlamaOptions(args.draft_model, N_CELLS, n_seqs, n_threads=args.threads),
    ]
    with closing(LlamaBackend(options[0])) as target, closing(LlamaBackend(options[1])) as draft:
        yield target, draft


def recite(target: Backend, way: str, n_prompts: int | None, max_tokens: int) -> list[Text]:
    """Return the target's replies of max_tokens tokens, sampled as WAYS[way] says. Raises DuoError."""
    written = write(target, texts.prompt_ids(target, load(n_prompts, PYTHON)), WAYS[way], max_tokens)
    return [text for text in written if len(text.tokens) - text.n_prompt == max_tokens]


def measure(args: argparse.Namespace) -> program.Result:
    """Run the virtual clock and return the section. Raises DuoError."""
    rows, n_replies = list[list[str]](), list[str]()
    machine = MACHINES[args.machine] if args.machine else None
    paces: list[float] = [machine.curve[1]] if machine else args.step_ms
    speeds: list[float] = args.r
    sessions: list[int] = args.sessions
    with pair(args) as (target, draft):
        for way in list(WAYS)[:2]:
            known = recite(target, way, args.prompts, args.max_tokens)
            n_replies.append(str(len(known)))
            for step_ms, r, n in product(paces, speeds, sessions):
                gains: list[float] = []
                for latency_ms in args.latency_ms:
                    pace: dict[str, Any] = {"tt_us": round(1000 * step_ms)}
                    pace["latency_us"] = round(1000 * latency_ms)
                    found = run(ClockedDrafter(draft, r, **pace), known, n, machine)
                    alone = found if n == 1 else run(ClockedDrafter(draft, r, **pace), known, 1, machine)
                    gains.append(found.speedup - 1)
                    cells = [f"{step_ms:g}", f"{latency_ms:g}", f"{r:g}", str(n)]
                    rows.append([way, *cells, *_cells(found, alone.rates, n), f"{gains[-1] / gains[0]:.2f}"])
                    print(*rows[-1], flush=True)
    heads = ["", "step, ms", "one way, ms", "r", "sessions", "speed-up", "tokens a step", "no guess"]
    heads += ["least", "slowest", "of its own", "of the gain"]
    what = (
        f"{report.model_line(args.model)} by {report.model_line(args.draft_model)}; "
        f"{' and '.join(n_replies)} replies of {args.max_tokens} tokens. No guess: share of steps. Least: "
        "speed-up of any reply. "
        "Slowest: of those at once, by their mean; of its own: each rate by that of the text alone. Of the "
        "gain: by that of the first latency."
    )
    return "the bundled pair under a virtual clock", [what, report.table(heads, rows, n_words=1)]


def _cells(found: Found, alone: Mapping[int, float], n: int) -> list[str]:
    fair = ["-", "-"]
    if n > 1:
        own = {id: rate / alone[id] for id, rate in found.rates.items()}
        fair = [f"{slowest(rates, n):.2f}" for rates in (found.rates, own)]
    least = min(found.rates.values())
    return [f"{found.speedup:.2f}", f"{found.per_step:.2f}", f"{found.empty:.3f}", f"{least:.2f}", *fair]


def _parser() -> argparse.ArgumentParser:
    shared = ("model", "draft-model", "threads", "prompts", "max-tokens")
    what = "The bundled pair under a virtual clock."
    parser = program.make_parser("clocked", what, *shared, prompts=None, max_tokens=64)
    add = parser.add_argument
    add("--r", type=program.floats, default=[4.0, 8.0, 16.0], help="drafted tokens per plain step")
    add("--sessions", type=program.numbers, default=[1, 4], help="at once, at most 8")
    add("--step-ms", type=program.floats, default=[TT_US / 1000], help="of a plain step")
    add(
        "--machine",
        choices=MACHINES,
        help="whose steps these are, whatever --step-ms says; guesses have to pay there",
    )
    add("--latency-ms", type=program.floats, default=[0.0], help="of a message, each way")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
