"""A session without a model: prepared rows of logits, guesses with a set share of right ones, and a clock on
which decodes take as long as a model's. What remains is the server's own work.
"""

from __future__ import annotations

import cProfile
import time
from collections.abc import Callable, Sequence

import numpy as np

from drafters.draft_session import DraftSession
from server.engine.proposer import NOTHING, ROOT, Ask, NoProposer, OpenedSession, Planned, Proposal
from server.llama.backend import Batch, Logits
from server.sampling.draft_token import DraftGuess
from server.sampling.draw import draw
from server.sampling.noise import mix
from server.sampling.params import SamplingParams
from server.speculation.wire.bus import Listener
from server.speculation.wire.messages import Commit, Message, Open
from server.speculation.wire.presence import Presence, VocabularyCard
from tests.fake_backend import FakeVocabulary

N_PROMPT = 512  # tokens
N_ROWS = 48  # different rows of a set
N_BATCH = 64
DEPTH, LEAVES = 8, 3  # guesses of a step, and leaves of a tree of them
PER_MESSAGE = 2  # guesses of one Draft
RIGHT = 0.8  # of guesses
SURE, UNSURE, SECOND = 0.86, 0.59, 0.39  # confidence of a guess, and of a second one
DECODE_S, ROW_S = 0.010, 0.00002  # of a decode, as the proposer sees it


# -- a backend that costs nothing ----------------------------------------


class SizedVocabulary(FakeVocabulary):
    """The toy's, with as many ids as wanted."""

    def __init__(self, size: int) -> None:
        self.size = size


class Watch:
    """A clock on which every decode takes what a model takes. decoded_s: what all of them really took."""

    def __init__(self) -> None:
        self.decoded_s = 0.0
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self._ahead_s

    def outside(self, work: Callable[[], object], profile: cProfile.Profile | None) -> float:
        """Seconds of this work without its decodes. A profile records it."""
        decoded_s = self.decoded_s
        if profile:
            profile.enable()
        began = time.perf_counter()
        work()
        spent_s = time.perf_counter() - began
        if profile:
            profile.disable()
        return spent_s - (self.decoded_s - decoded_s)

    def decoded(self, spent_s: float, model_s: float) -> None:
        self.decoded_s += spent_s
        self._ahead_s += model_s - spent_s


class PreparedBackend:
    """Implements Backend. Its logits depend on the position only, in an order without a period."""

    name = "prepared"
    chat_template: str | None = None
    can_trim = True
    can_copy = True
    can_shift = True
    overlaps = False
    n_batch = N_BATCH

    def __init__(
        self,
        rows: Logits,
        n_ctx: int,
        watch: Watch,
        *,
        n_seqs: int = LEAVES,
        decode_s: Callable[[int], float] = lambda n_rows: DECODE_S + n_rows * ROW_S,
        errs: bool = False,
    ) -> None:
        """decode_s: what a model takes for a decode, by rows. errs: its rows differ from the lead's where a
        guess shall be wrong."""
        self.n_seqs = n_seqs
        self._decode_s = decode_s
        self._errs = errs
        self.vocab = SizedVocabulary(rows.shape[1])
        self.n_ctx = self.n_cells = n_ctx
        self.n_rows_last = 0
        self._rows = rows
        self._out = np.zeros((N_BATCH, rows.shape[1]), np.float32)
        self._watch = watch

    def decode(self, batch: Batch) -> Logits:
        began = time.perf_counter()
        self.n_rows_last = len(batch)
        positions = [p for p, wanted in zip(batch.positions, batch.wanted, strict=True) if wanted]
        out = self._out[: len(positions)]
        for i, position in enumerate(positions):
            out[i] = self._rows[row_after(position + (self._errs and not _right(position + 1)))]
        self._watch.decoded(time.perf_counter() - began, self._decode_s(len(batch)))
        return out

    def length(self, seq: int) -> int:
        return self.n_ctx  # at least: nothing is ever missing

    def intact(self, seq: int, length: int) -> bool:
        return True

    def save(self, seq: int) -> bytes:
        return b""

    def trim(self, seq: int, length: int) -> None: ...
    def copy(self, source: int, target: int, start: int, end: int) -> None: ...
    def load(self, seq: int, data: bytes) -> None: ...
    def shift(self, seq: int, start: int, end: int) -> None: ...
    def close(self) -> None: ...


def row_after(position: int) -> int:
    """The index of the row that follows the token there: as good as random, in no function of its own that a
    profile would show."""
    return (position * 2654435761 >> 16) % N_ROWS


def make_rows(n_vocab: int, *, peaked: bool) -> Logits:
    """Normally distributed logits. peaked: with five likely tokens far above the rest."""
    rng = np.random.default_rng(0)
    rows = 2.0 * rng.standard_normal((N_ROWS, n_vocab), np.float32)
    if peaked:
        for row in rows:
            row[rng.choice(n_vocab, 5, replace=False)] = (20.0, 18.5, 17.0, 16.0, 15.0)
    return rows


# -- guesses ----------------------------------------


class Script:
    """The draw and the guess for each position. Pure."""

    def __init__(self, rows: Logits, sampling: SamplingParams) -> None:
        self._rows = rows
        self._sampling = sampling
        self._truths: dict[int, int] = {}

    def truth(self, position: int) -> int:
        token = self._truths.get(position)
        if token is None:
            row = self._rows[row_after(position - 1)]
            token = self._truths[position] = draw(row, self._sampling, position)
        return token

    def guess(self, position: int) -> int:
        truth = self.truth(position)
        return truth if _right(position) else (truth + 1) % self._rows.shape[1]

    def instead(self, position: int) -> int:
        """The second guess, which is right where the guess is wrong."""
        truth = self.truth(position)
        return (truth + 2) % self._rows.shape[1] if _right(position) else truth

    def is_sure(self, position: int) -> bool:
        """True for most right guesses and for some wrong ones."""
        return (mix(position + 2) % 4 == 0) != _right(position)


def _right(position: int) -> bool:
    return mix(position ^ 0x5EED) / 2**64 < RIGHT


class ScriptedProposer(NoProposer):
    """A chain of DEPTH guesses, or a tree of DEPTH nodes with two alternatives, made between steps."""

    def __init__(self, script: Script, *, leaves: int) -> None:
        self._script = script
        self._leaves = leaves
        self._tokens: Sequence[int] = ()
        self._next = NOTHING

    def open(self, session: OpenedSession) -> None:
        self._tokens = session.tokens

    def prepare(self) -> None:
        """Make the guesses of the next step."""
        position, script = len(self._tokens), self._script
        n_path = DEPTH - (self._leaves - 1)
        path = [script.guess(position + i) for i in range(n_path)]
        others = [script.instead(position + i) for i in range(self._leaves - 1)]
        parents = [*range(ROOT, n_path - 1), *range(ROOT, ROOT + len(others))]
        self._next = Proposal((*path, *others), tuple(parents), ("script",) * DEPTH)

    def propose(self, asks: Sequence[Ask], n_rows: int, n_cells: int) -> Planned:
        return Planned([self._next for _ in asks])


class QuietBus:
    """The part of Bus that has nothing to do here."""

    def describe(self, presence: Presence) -> None: ...
    def close(self) -> None: ...


class ScriptedDrafter(QuietBus):
    """Implements Bus towards one drafter, which answers between steps: DEPTH guesses ahead, and with
    `branches` a second guess wherever it is not sure."""

    def __init__(self, script: Script, n_vocab: int, *, branches: bool) -> None:
        card = VocabularyCard(n_vocab, None, None, ())
        self.lead = Presence("lead", "lead", "prepared", "0", card, 1, host="here")
        self.drafter = Presence("drafter", "drafter", "script", "0", card, 1, host="elsewhere")
        self._script = script
        self._branches = branches
        self._told: list[Message] = []
        self._session: DraftSession | None = None

    def start(self, listener: Listener) -> None:
        self._listener = listener
        listener.peers([self.drafter])

    def send(self, to: str, message: Message) -> None:
        self._told.append(message)

    def answer(self) -> None:
        """Take in the lead's messages, then send guesses."""
        for message in self._told:
            if isinstance(message, Open):
                self._session = DraftSession(message)
            elif isinstance(message, Commit) and self._session:
                self._session.commit(message)
            else:
                self._session = None
        self._told.clear()
        if self._session:
            self._publish(self._session)

    def _publish(self, session: DraftSession) -> None:
        by = self.drafter.id, 100
        while n_missing := DEPTH - session.n_ahead:
            for _ in range(min(PER_MESSAGE, n_missing)):
                self._guess(session, len(session.tokens))
            for draft in session.take_drafts(*by):
                self._listener.received(draft)

    def _guess(self, session: DraftSession, position: int) -> None:
        token, sure = self._script.guess(position), self._script.is_sure(position)
        if sure or not self._branches:
            session.add(DraftGuess(token, SURE if sure else UNSURE))
        else:
            session.add(DraftGuess(token, UNSURE))
            session.branch(position, DraftGuess(self._script.instead(position), SECOND))
