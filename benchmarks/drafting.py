"""Python's share of a guess: `python -m benchmarks.drafting [--profile --only "tree; temperature 1"]`.

The real worker and the real model drafter for one session, over a backend without a model: its decode only
copies prepared rows of logits. Measured is a turn's time without that of decode: how long the model waits for
its next decode. The drafter's clock sees decodes as long as a small model's on a GPU. The lead, which works
between turns, commits eight right guesses at a time, and now and then a wrong one.
"""

from __future__ import annotations

import cProfile
import functools
import itertools
import sys
from collections.abc import Sequence

import numpy as np

from benchmarks import prepared, timing
from benchmarks.prepared import N_PROMPT
from benchmarks.timing import WAYS, Case, Cost
from drafters.draft_session import DraftSession
from drafters.kinds import WIDEST
from drafters.model import ModelDrafter
from drafters.worker import Worker
from server.llama.backend import Logits
from server.llama.shapes import UNKNOWN, Shapes
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import Commit, Open, chain_next, chain_start
from server.speculation.wire.presence import Presence, VocabularyCard

WARM_UP = 60  # turns
MAX_AHEAD = 32
READY, PER_COMMIT = 12, 8  # guesses that are there when the lead commits, and how many of them it does
N_SEQS, N_BRANCHES = 26, 8
DECODE_S = 0.0005  # of a decode, as the drafter sees it
STEEPNESS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)  # of rows: what a logit loses while the rank grows e times
MIXED: dict[int, float] = {1: 2.0, WIDEST: 2.0}  # a change of shape is much too dear
SHAPES = {
    "path": Shapes({1: DECODE_S, WIDEST: 1.0}, MIXED),  # so are branches
    "tree": UNKNOWN,
    "padded tree": Shapes({1: DECODE_S, WIDEST: DECODE_S}, MIXED),
}


class Lead(prepared.QuietBus):
    """Implements Bus towards one drafter. It commits what the drafter draws at a position, or, where that
    shall be wrong, another of its guesses, if there is any."""

    def __init__(self, script: prepared.Script, n_vocab: int, sampling: SamplingParams) -> None:
        card = VocabularyCard(n_vocab, None, None, ())
        self.drafter = Presence("drafter", "drafter", "prepared", "0", card, 1, host="here")
        self._script = script
        self._n_vocab = n_vocab
        prompt = np.random.default_rng(1).integers(0, n_vocab, N_PROMPT).tolist()
        self._chain = chain_start(prompt)
        self.opening = Open("lead", 1, self._chain, MAX_AHEAD, sampling, tuple(prompt))
        self._n_commits = 0

    def start(self, listener: object) -> None: ...
    def send(self, to: str, message: object) -> None: ...

    def answer(self, session: DraftSession, *, idle: bool) -> Commit | None:
        """The next commit, if READY right guesses are there or the drafter is idle."""
        base = session.n_committed
        guesses = enumerate(session.tokens[base : base + READY], base)
        right = [token for _, token in itertools.takewhile(self._is_right, guesses)]
        if not idle and len(right) < READY:
            return None
        right = right[:PER_COMMIT]
        self._n_commits += 1
        if self._n_commits % 4 == 0 or not right:
            right = right[: PER_COMMIT // 2]
            right.append(self._instead(session, base + len(right)))
        self._chain = functools.reduce(chain_next, right, self._chain)
        return Commit(1, base, self._chain, tuple(right))

    def _is_right(self, guess: tuple[int, int]) -> bool:
        position, token = guess
        return token == self._script.truth(position)

    def _instead(self, session: DraftSession, position: int) -> int:
        truth = self._script.truth(position)
        others = [branch.tokens[0] for branch in session.branches if branch.fork == position]
        return next((token for token in others if token != truth), (truth + 2) % self._n_vocab)


class OpenDrafter(ModelDrafter):
    """session: the one that is drafted for."""

    session: DraftSession | None = None

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession] | None:
        self.session = sessions[0]
        return super().advance(sessions)


class Bench:
    """One session that is drafted for, turn by turn. Implements timing.Bench."""

    def __init__(self, rows: Logits, shape: str, sampling: SamplingParams, n_turns: int) -> None:
        self._watch = prepared.Watch()
        n_ctx = N_PROMPT + (WARM_UP + n_turns) * (PER_COMMIT + 1) + 2 * MAX_AHEAD
        backend = prepared.PreparedBackend(
            rows, n_ctx, self._watch, n_seqs=N_SEQS, decode_s=lambda n_rows: DECODE_S
        )
        self._drafter = OpenDrafter(backend, n_branches=N_BRANCHES, shapes=SHAPES[shape], clock=self._watch)
        self._lead = Lead(prepared.Script(rows, sampling), rows.shape[1], sampling)
        self.worker = Worker(self._lead, self._lead.drafter, self._drafter, clock=self._watch)
        self.worker.received(self._lead.opening)
        self.n_guesses = self.n_committed = 0
        self._idle = False
        for _ in range(WARM_UP):
            self.work()

    def work(self, profile: cProfile.Profile | None = None) -> float:
        """Turns until one makes guesses; the time is that turn's."""
        n_drafted = self.worker.n_drafted
        while True:
            session = self._drafter.session
            if session and (commit := self._lead.answer(session, idle=self._idle)):
                self.worker.received(commit)
                self.n_committed += len(commit.tokens)
            decoded_s = self._watch.decoded_s
            spent_s = self._watch.outside(self._turn, profile)
            self._idle = self._watch.decoded_s == decoded_s
            if self.worker.n_drafted > n_drafted:
                self.n_guesses = self.worker.n_drafted
                return spent_s

    def _turn(self) -> None:
        self.worker.turn(wait=False)


def make(case: Case, n_turns: int) -> Bench:
    return Bench(make_rows(int(case.rows.split()[0])), case.what, WAYS[case.way], n_turns)


@functools.cache
def make_rows(n_vocab: int) -> Logits:
    """Logits as a small model has them in easy text: probabilities fall with a power of the rank. The
    likeliest token has .6 to .996 of it, and 4 to 400 tokens are within 12 of the largest logit."""
    rng = np.random.default_rng(0)
    falling = -np.log(np.arange(1, n_vocab + 1))
    rows = [rng.permutation(STEEPNESS[i % len(STEEPNESS)] * falling) for i in range(prepared.N_ROWS)]
    return np.array(rows, np.float32)


def cases(vocabularies: Sequence[int]) -> list[Case]:
    return [Case(shape, way, f"{n} tokens") for shape in SHAPES for way in WAYS for n in vocabularies]


def cell(_: Case, cost: Cost) -> str:
    return f"{cost.us:.0f} ({cost.us_fastest:.0f} to {cost.us_slowest:.0f})"


SUBJECT = timing.Subject(
    name="drafting",
    title="Python's share of a guess",
    unit="turn",
    n_units=1000,
    vocabularies=(4_096, 150_000),
    cases=cases,
    make=make,
    heads=("drafted", "sampling", "guesses a turn"),
    means=lambda cost: (cost.n_guesses,),
    cell=cell,
    legend="In brackets the fastest and the slowest tenth.",
    file=__file__,
)


main = timing.main(SUBJECT)

if __name__ == "__main__":
    sys.exit(main())
