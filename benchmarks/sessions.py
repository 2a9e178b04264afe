"""Sessions without a model, one unit of work at a time: a lead's steps, and a drafter's turns.

A lead is the real engine and the real proposer. Guesses are right with probability .8. They come from a draft
model in the lead, whose decodes do not count either, or as messages from a drafter, which replays a script
between steps.

A drafter is the real worker and the real model drafter under the clock of clocked.py, with a real lead that
says, but for some tokens, what the drafter draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.clocked import MOST_AT_ONCE, N_BRANCHES, ClockedDrafter, run
from benchmarks.prepared import (
    DECODE_S,
    DEPTH,
    LEAVES,
    N_BATCH,
    N_PROMPT,
    ROW_S,
    DirectBus,
    PreparedBackend,
    Script,
    Watch,
    row_after,
)
from benchmarks.temperature import Text
from drafters.draft_session import DraftSession
from drafters.drafter import TD_WEIGHT, Drafter
from drafters.kinds import WIDEST
from server.engine.engine import Engine
from server.engine.events import Committed, Event
from server.engine.proposer import Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.estimators import Smoothed
from server.llama.backend import Logits
from server.llama.shapes import UNKNOWN, Shapes
from server.sampling.draft_token import DraftGuess
from server.sampling.params import SamplingParams
from server.speculation.gating.costs import StepCosts
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.wire.presence import Presence, vocabulary_card

WARM_UP_STEPS, WARM_UP_TURNS = 20, 60
DRAFT_S = 0.00005  # of a decode of the draft model in the lead
TD_S = 0.001  # of a guess of the drafter on the bus: two of them make a message
SURE, UNSURE, SECOND = 0.86, 0.59, 0.39  # its confidence in a guess, and in a second one
R = 8.0  # turns of the drafter per plain step. At 20 its messages are more than a lead takes (MAX_RATE)
RIGHT_RUN = 28  # tokens, of which the last is not what the drafter draws
MIXED: dict[int, float] = {1: 2.0, WIDEST: 2.0}  # seconds: a change of shape is much too dear
SHAPES = {
    "path": Shapes({1: 0.0005, WIDEST: 1.0}, MIXED),  # so are branches
    "tree": UNKNOWN,
    "padded tree": Shapes({1: 0.0005, WIDEST: 0.0005}, MIXED),
}


@dataclass(frozen=True, slots=True)
class Work:
    """seconds: of each step or turn, outside decode. Guesses and committed tokens are means of one."""

    seconds: Sequence[float]
    n_guesses: float
    n_committed: float

    @property
    def us(self) -> float:
        """The median's microseconds."""
        return 1e6 * median(self.seconds)


def prompt_of(n_vocab: int) -> list[int]:
    return np.random.default_rng(1).integers(0, n_vocab, N_PROMPT).tolist()


# -- a lead ----------------------------------------


@dataclass(frozen=True, slots=True)
class Guesses:
    """by: a drafter, the lead, or nobody. leaves: of the tree; 1 is a chain."""

    by: str = ""
    leaves: int = 1
    lookup: bool = False


GUESSES = {
    "none": Guesses(),
    "none, lookup": Guesses(lookup=True),
    "chain by lead": Guesses("lead"),
    "chain by drafter": Guesses("drafter"),
    "tree by drafter": Guesses("drafter", LEAVES),
    "tree by drafter, lookup": Guesses("drafter", LEAVES, lookup=True),
}


class ScriptedDrafter(Drafter):
    """Guesses DEPTH ahead, and with `branches` a second time wherever it is not sure. Its clock counts
    guesses only."""

    def __init__(self, script: Script, *, branches: bool) -> None:
        self.td = Smoothed(TD_WEIGHT, TD_S)
        self._script = script
        self._branches = branches
        self._now = 0.0

    def clock(self) -> float:
        return self._now

    def wants(self, session: DraftSession) -> bool:
        return not session.lost and session.n_ahead < DEPTH

    def advance(self, sessions: Sequence[DraftSession]) -> Sequence[DraftSession]:
        self._now += TD_S
        for session in sessions:
            position = len(session.tokens)
            sure = self._script.is_sure(position)
            session.add(DraftGuess(self._script.guess(position), SURE if sure else UNSURE))
            if self._branches and not sure:
                session.branch(position, DraftGuess(self._script.instead(position), SECOND))
        return sessions

    def close(self, session: DraftSession, *, keep: bool) -> None: ...


class SteppedLead:
    """One session that decodes, warmed up."""

    def __init__(self, rows: Logits, what: str, sampling: SamplingParams, n_steps: int) -> None:
        """what: of GUESSES."""
        self.watch = Watch()
        self._rows, self._sampling = rows, sampling
        self._n_ctx = N_PROMPT + (WARM_UP_STEPS + n_steps) * (DEPTH + 1) + DEPTH + 1
        self._backend = PreparedBackend(rows, self._n_ctx, self.watch)
        self.tokens: list[int] = []  # committed ones
        self._between: Callable[[], None] = lambda: None
        guesses = GUESSES[what]
        limits = Limits(n_batch=N_BATCH, draft_max=DEPTH, leaves=guesses.leaves)
        self._engine = Engine(
            self._backend, self._proposer(guesses), self._count, n_slots=1, limits=limits, clock=self.watch
        )
        self._engine.submit(1, GenerationRequest(prompt_of(rows.shape[1]), sampling))
        while not self.tokens:
            self.step()
        for _ in range(WARM_UP_STEPS):
            self.step()

    def _proposer(self, guesses: Guesses) -> Proposer:
        policy = Policy(max_rows=4 + 2 * DEPTH, leaves=guesses.leaves, lookup=guesses.lookup)
        known = {n: DECODE_S + n * ROW_S for n in range(1, policy.max_rows + 1)}
        inline = self._draft_model() if guesses.by == "lead" else None
        remote = self._drafter(guesses) if guesses.by == "drafter" else None
        costs = StepCosts(policy.max_rows, known)
        return Speculator(policy, remote=remote, inline=inline, costs=costs, clock=self.watch)

    def _draft_model(self) -> DraftModel:
        backend = PreparedBackend(self._rows, self._n_ctx, self.watch, decode_s=lambda n: DRAFT_S, errs=True)
        return DraftModel(backend, clock=self.watch)

    def _drafter(self, guesses: Guesses) -> RemoteDrafters:
        card = vocabulary_card(self._backend.vocab)
        drafter = ScriptedDrafter(Script(self._rows, self._sampling), branches=guesses.leaves > 1)
        presence = Presence("drafter", "drafter", "script", "0", card, 1, host="elsewhere")
        bus = DirectBus(presence, drafter, drafter.clock)
        lead = Presence("lead", "lead", "prepared", "0", card, 1, host="here")
        remote = RemoteDrafters(bus, lead, max_ahead=2 * DEPTH, clock=self.watch)
        bus.start(remote)
        self._between = bus.draft
        return remote

    def _count(self, _: int, event: Event) -> None:
        if isinstance(event, Committed):
            self.tokens += event.tokens

    def step(self) -> tuple[float, int]:
        """Seconds outside decode, and how many guesses were verified."""
        self._between()
        return self.watch.outside(self._engine.step), self._backend.n_rows_last - 1


def steps(rows: Logits, what: str, sampling: SamplingParams, n_steps: int) -> Work:
    """what: of GUESSES."""
    lead = SteppedLead(rows, what, sampling, n_steps)
    n_before = len(lead.tokens)
    seconds, n_guesses = zip(*(lead.step() for _ in range(n_steps)), strict=True)
    return Work(seconds, sum(n_guesses) / n_steps, (len(lead.tokens) - n_before) / n_steps)


# -- a drafter ----------------------------------------


class TimedDrafter(ClockedDrafter):
    """seconds: outside decode, of each turn that made guesses: so long the model waits for its next one."""

    def __init__(self, backend: PreparedBackend, watch: Watch, shapes: Shapes) -> None:
        super().__init__(backend, R, shapes)
        self.seconds: list[float] = []
        self._watch = watch

    def work(self) -> None:
        n_drafted = self.worker.n_drafted
        spent_s = self._watch.outside(super().work)
        if self.worker.n_drafted > n_drafted:
            self.seconds.append(spent_s)


def turns(rows: Logits, what: str, sampling: SamplingParams, n_turns: int) -> Work:
    """what: of SHAPES."""
    watch, text = Watch(), say(rows, sampling, 2 * (WARM_UP_TURNS + n_turns))
    backend = PreparedBackend(rows, 2 * len(text.tokens), watch, n_seqs=MOST_AT_ONCE + N_BRANCHES)
    drafter = TimedDrafter(backend, watch, SHAPES[what])
    run(drafter, [text], 1)
    n = len(drafter.seconds)
    n_committed = len(text.tokens) - text.n_prompt
    seconds = drafter.seconds[WARM_UP_TURNS:][:n_turns]
    return Work(seconds, drafter.worker.n_drafted / n, n_committed / n)


def say(rows: Logits, sampling: SamplingParams, n_tokens: int) -> Text:
    """What a drafter with these rows draws, except that the last of each RIGHT_RUN tokens is the likeliest of
    the others."""
    prompt, script = prompt_of(rows.shape[1]), Script(rows, sampling)
    said = list[int]()
    for position in range(N_PROMPT, N_PROMPT + n_tokens):
        token = script.truth(position)
        if position % RIGHT_RUN == RIGHT_RUN - 1:
            likely = np.argsort(rows[row_after(position - 1)])[-2:]
            token = int(likely[0] if likely[1] == token else likely[1])
        said.append(token)
    return Text((*prompt, *said), N_PROMPT, sampling)
