"""Python's share of a step: `python -m benchmarks.overhead [--profile --only "tree by drafter"]`.

The real engine and the real proposer for one session, over a backend without a model: its decode only copies
prepared rows of logits, which leaves them in the processor's caches as a real decode does. Measured is a
step's time without that of decode. The proposer's clock sees decodes as long as a model's, so that its
decisions are those of a server. Guesses are right with probability .8, and come from a script, from a draft
model in the lead, whose decodes do not count either, or, as Draft messages, from a drafter on a bus, which
works between steps.
"""

from __future__ import annotations

import cProfile
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import prepared, timing
from benchmarks.prepared import DECODE_S, DEPTH, LEAVES, N_BATCH, N_PROMPT, ROW_S
from benchmarks.timing import WAYS, Case, Cost
from server.engine.engine import Engine
from server.engine.events import Committed, Event
from server.engine.proposer import Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.backend import Logits
from server.sampling.params import SamplingParams
from server.speculation.gating.costs import StepCosts
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator

WARM_UP = 20  # steps
DRAFT_S = 0.00005  # of a decode of the draft model in the lead
PLAIN_US, DRAFTED_US = 150.0, 400.0  # bounds without and with guesses: 3 and 8 % of 5 ms on an H200
SHAPES = {"peaked": True, "flat": False}


@dataclass(frozen=True, slots=True)
class Guesses:
    """kind: none, chain or tree. by: script, drafter or lead, or nobody."""

    kind: str
    by: str = ""
    lookup: bool = False

    @property
    def bound_us(self) -> float:
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
BY_NAME = {str(guesses): guesses for guesses in ALL}


class Bench:
    """One session that decodes, step by step. Implements timing.Bench."""

    def __init__(self, rows: Logits, guesses: Guesses, sampling: SamplingParams, n_steps: int) -> None:
        self.watch = prepared.Watch()
        n_ctx = N_PROMPT + (WARM_UP + n_steps) * (DEPTH + 1) + DEPTH + 1
        self._backend = prepared.PreparedBackend(rows, n_ctx, self.watch)
        self.tokens: list[int] = []  # committed ones
        self.n_guesses = self.n_committed = 0
        proposer, self._between = self._proposer(guesses, rows, sampling, n_ctx)
        leaves = LEAVES if guesses.kind == "tree" else 1
        limits = Limits(n_batch=N_BATCH, draft_max=DEPTH, leaves=leaves)
        self._engine = Engine(
            self._backend, proposer, self._count, n_slots=1, limits=limits, clock=self.watch
        )
        prompt = np.random.default_rng(1).integers(0, rows.shape[1], N_PROMPT).tolist()
        self._engine.submit(1, GenerationRequest(prompt, sampling))
        while not self.tokens:
            self.work()
        for _ in range(WARM_UP):
            self.work()

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
            draft = prepared.PreparedBackend(
                rows, n_ctx, self.watch, decode_s=lambda n_rows: DRAFT_S, errs=True
            )
            inline = DraftModel(draft, clock=self.watch)
            return Speculator(policy, inline=inline, costs=costs, clock=self.watch), lambda: None
        drafter = prepared.ScriptedDrafter(script, rows.shape[1], branches=leaves > 1)
        remote = RemoteDrafters(drafter, drafter.lead, max_ahead=2 * DEPTH, clock=self.watch)
        drafter.start(remote)
        return Speculator(policy, remote=remote, costs=costs, clock=self.watch), drafter.answer

    def _count(self, _: int, event: Event) -> None:
        if isinstance(event, Committed):
            self.tokens += event.tokens

    def work(self, profile: cProfile.Profile | None = None) -> float:
        """A step."""
        self._between()
        spent_s = self.watch.outside(self._engine.step, profile)
        self.n_guesses += self._backend.n_rows_last - 1
        self.n_committed = len(self.tokens)
        return spent_s


def make(case: Case, n_steps: int) -> Bench:
    size, _, shape = case.rows.partition("k ")
    return Bench(_rows(1000 * int(size), shape), BY_NAME[case.what], WAYS[case.way], n_steps)


@functools.cache
def _rows(n_vocab: int, shape: str) -> Logits:
    return prepared.make_rows(n_vocab, peaked=SHAPES[shape])


def cases(vocabularies: Sequence[int]) -> list[Case]:
    columns = [f"{n // 1000}k {shape}" for n in sorted(vocabularies) for shape in SHAPES]
    return [Case(str(guesses), way, rows) for guesses in ALL for way in WAYS for rows in columns]


def cell(case: Case, cost: Cost) -> str:
    """Bold if over its bound."""
    return f"**{cost.us:.0f}**" if cost.us > BY_NAME[case.what].bound_us else f"{cost.us:.0f}"


SUBJECT = timing.Subject(
    name="overhead",
    title="Python's share of a step",
    unit="step",
    n_units=300,
    vocabularies=(4_000, 150_000),
    cases=cases,
    make=make,
    heads=("guesses", "sampling", "guesses a step", "tokens a step"),
    means=lambda cost: (cost.n_guesses, cost.n_committed),
    cell=cell,
    legend=f"Bold: more than {PLAIN_US:.0f} without guesses, {DRAFTED_US:.0f} with.",
    file=__file__,
)


main = timing.main(SUBJECT)

if __name__ == "__main__":
    sys.exit(main())
