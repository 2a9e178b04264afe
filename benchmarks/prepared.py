"""Run a session without a model, so that only the server's own work takes time.

Rows of logits are prepared, and a set share of guesses is right. On the session's clock, decodes take as long
as a model's.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.texts import Text
from drafters.drafter import Drafter
from drafters.worker import Worker
from server.drafting.draft_session import DraftSession
from server.drafting.expansion import TD_WEIGHT
from server.estimators import Smoothed
from server.llama.backend import Batch, Hidden, Logits
from server.llama.context import FLOATS, LlamaBatch, view
from server.sampling.draft_token import DraftGuess
from server.sampling.draw import draw
from server.sampling.noise import mix
from server.sampling.params import SamplingParams
from server.speculation.policy import Policy
from server.speculation.speculator import Speculator
from server.speculation.step import Drafting
from server.speculation.view import View
from server.speculation.wire.bus import Listener
from server.speculation.wire.messages import Message
from server.speculation.wire.presence import Presence
from tests.fake_backend import FakeVocabulary

N_PROMPT = 512  # tokens
N_ROWS = 48  # different rows of a set
PREPARED_BATCH = 64
N_EMBD = 4096  # of hidden rows
DEPTH, LEAVES = 8, 3  # guesses of a step, and leaves of a tree of them
RIGHT = 0.8  # of guesses
RIGHT_RUN = 28  # tokens that a drafter with a model is told, of which the last is not what it draws
TD_S = 0.001  # of a guess of the scripted drafter: two of them make a message
# The draft's confidence in a sure guess, in an unsure one, and in a second one.
SURE_CONFIDENCE, UNSURE_CONFIDENCE, SECOND_CONFIDENCE = 0.86, 0.59, 0.39
STEEPNESS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)  # of rows: what a logit loses while the rank grows e times
DECODE_S, ROW_S = 0.010, 0.00002  # of a decode, as the proposer sees it


# -- a backend that costs nothing ----------------------------------------


class SizedVocabulary(FakeVocabulary):
    """The toy vocabulary with any number of ids."""

    def __init__(self, size: int) -> None:
        self.size = size

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return str(token).encode()


class Watch:
    """A clock on which every decode takes a model's time.

    decoded_s: Seconds that all decodes really took.
    """

    def __init__(self) -> None:
        self.decoded_s = 0.0
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self._ahead_s

    def outside(self, work: Callable[[], object]) -> float:
        """Return the seconds of `work` without its decodes."""
        decoded_s, began = self.decoded_s, time.perf_counter()
        work()
        return time.perf_counter() - began - (self.decoded_s - decoded_s)

    def hidden(self, work: Callable[[], object]) -> None:
        """Do work that a GPU's decode hides."""
        began = time.perf_counter()
        work()
        spent_s = time.perf_counter() - began
        self.decoded(spent_s, spent_s)

    def decoded(self, spent_s: float, model_s: float) -> None:
        self.decoded_s += spent_s
        self._ahead_s += model_s - spent_s


class PreparedBackend:
    """A Backend whose logits depend only on the position, and do not repeat with a period."""

    name = "prepared"
    chat_template: str | None = None
    can_trim = True
    can_copy = True
    can_share = True
    n_tail = 0
    can_shift = True
    overlaps = False
    n_batch = PREPARED_BATCH

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
        """Make the backend.

        decode_s: Returns a model's seconds for a decode of n rows. errs: True if its rows differ from the
        lead's where a guess shall be wrong.
        """
        self.n_seqs = n_seqs
        self._lengths = [0] * n_seqs
        self._decode_s = decode_s
        self._errs = errs
        self.vocab = SizedVocabulary(rows.shape[1])
        self.n_ctx = self.n_cells = n_ctx
        self.n_rows_last = self.n_decodes = 0
        self._rows = rows
        self._out = np.zeros((PREPARED_BATCH, rows.shape[1]), np.float32)
        self._watch = watch

    def decode(self, batch: Batch) -> Logits:
        began = time.perf_counter()
        self.n_rows_last, self.n_decodes = len(batch), self.n_decodes + 1
        positions = [p for p, wanted in zip(batch.positions, batch.wanted, strict=True) if wanted]
        for i, (seq, position) in enumerate(zip(batch.seqs, batch.positions, strict=True)):
            for one in batch.shared.get(i, (seq,)):
                self._lengths[one] = position + 1
        out = self._out[: len(positions)]
        for i, position in enumerate(positions):
            out[i] = self._rows[self._row(position)]
        self._watch.decoded(time.perf_counter() - began, self._decode_s(len(batch)))
        return out

    def _row(self, position: int) -> int:
        """Return the index of the logits after `position`."""
        return row_after(position + (self._errs and not _right(position + 1)))

    def start(self, batch: Batch) -> Callable[[], Logits]:
        return functools.partial(self.decode, batch)

    def length(self, seq: int) -> int:
        return self._lengths[seq]

    def intact(self, seq: int, length: int) -> bool:
        return True

    def save(self, seq: int) -> bytes:
        return b""

    def trim(self, seq: int, length: int) -> None:
        self._lengths[seq] = min(self._lengths[seq], length)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self._lengths[target] = end

    def load(self, seq: int, data: bytes) -> None: ...
    def shift(self, seq: int, start: int, end: int) -> None: ...
    def close(self) -> None: ...


class PreparedBlock(PreparedBackend):
    """A PredictionBlock that guesses like a PreparedBackend with `errs`.

    Its hidden rows are as large as a large model's.
    """

    n_embd = N_EMBD
    n_depths = 0
    source = "mtp"
    what = "prepared"

    @functools.cached_property
    def _arrays(self) -> tuple[LlamaBatch, Any, Any]:
        """The batch of a decode, and pointers to the logits and hidden rows that it makes."""
        own = np.zeros((PREPARED_BATCH, N_EMBD), np.float32)
        return LlamaBatch(PREPARED_BATCH), self._out.ctypes.data_as(FLOATS), own.ctypes.data_as(FLOATS)

    def target_rows(self, n: int) -> Hidden:
        return np.zeros((n, N_EMBD), np.float32)

    def evaluate(self, batch: Batch, hidden: Hidden, depth: int = 0) -> tuple[Logits, Hidden]:
        """Decode with the Python work that a llama.cpp context does around it."""
        arrays, logits, own = self._arrays
        arrays.fill(batch)
        arrays.embed(hidden)
        n = len(self.decode(batch))
        return view(logits, PREPARED_BATCH, self.vocab.size)[:n], view(own, PREPARED_BATCH, N_EMBD)[:n]


def prompt_of(n_vocab: int) -> list[int]:
    return np.random.default_rng(1).integers(0, n_vocab, N_PROMPT).tolist()


def row_after(position: int) -> int:
    """Return the pseudo-random index of the logits after the token at `position`."""
    return (position * 2654435761 >> 16) % N_ROWS


@functools.cache
def make_rows(n_vocab: int, shape: str) -> Logits:
    """Return logits of shape (N_ROWS, n_vocab), normally distributed unless `shape` is "falling".

    "peaked" adds five likely tokens far above the rest. "falling" is like a small model in easy text:
    probabilities fall with a power of the rank, the likeliest token has .6 to .996, and 4 to 400 tokens are
    within 12 of the largest logit.
    """
    rng = np.random.default_rng(0)
    if shape == "falling":
        ranked = -np.log(np.arange(1, n_vocab + 1))
        falling = [rng.permutation(STEEPNESS[i % len(STEEPNESS)] * ranked) for i in range(N_ROWS)]
        return np.array(falling, np.float32)
    rows = 2.0 * rng.standard_normal((N_ROWS, n_vocab), np.float32)
    if shape == "peaked":
        for row in rows:
            row[rng.choice(n_vocab, 5, replace=False)] = (20.0, 18.5, 17.0, 16.0, 15.0)
    return rows


# -- guesses ----------------------------------------


class Script:
    """The drawn token and the guesses for each position. Pure."""

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
        """Return the second guess, which is right where the guess is wrong."""
        truth = self.truth(position)
        return (truth + 2) % self._rows.shape[1] if _right(position) else truth

    def is_sure(self, position: int) -> bool:
        """Return True for most right guesses and for some wrong ones."""
        return (mix(position + 2) % 4 == 0) != _right(position)


def _right(position: int) -> bool:
    return mix(position ^ 0x5EED) / 2**64 < RIGHT


def say(rows: Logits, sampling: SamplingParams, n_tokens: int) -> Text:
    """Return a text as a drafter with these rows draws it.

    The last of each RIGHT_RUN tokens is replaced by the likeliest other token.
    """
    prompt, script = prompt_of(rows.shape[1]), Script(rows, sampling)
    said = list[int]()
    for position in range(N_PROMPT, N_PROMPT + n_tokens):
        token = script.truth(position)
        if position % RIGHT_RUN == RIGHT_RUN - 1:
            likely = np.argsort(rows[row_after(position - 1)])[-2:]
            token = int(likely[0] if likely[1] == token else likely[1])
        said.append(token)
    return Text((*prompt, *said), N_PROMPT, sampling)


class ScriptedDrafter(Drafter):
    """A drafter that guesses DEPTH ahead. With `branches` it adds a second guess where it is not sure.

    Its clock counts guesses only.
    """

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
            session.add(
                DraftGuess(self._script.guess(position), SURE_CONFIDENCE if sure else UNSURE_CONFIDENCE)
            )
            if self._branches and not sure:
                session.branch(position, DraftGuess(self._script.instead(position), SECOND_CONFIDENCE))
        return sessions

    def close(self, session: DraftSession, *, keep: bool) -> None: ...


class TimedSpeculator(Speculator):
    """A speculator that measures the model in the lead.

    spent: Cost of its drafting in the latest step, outside decode.
    """

    spent = 0.0

    def __init__(self, policy: Policy, watch: Watch, **options: Any) -> None:
        """Make the speculator.

        options: See Speculator.
        """
        super().__init__(policy, clock=watch, **options)
        if self._inline:
            draft = self._inline.draft

            def timed(view: View, before: Drafting | None) -> tuple[float, Mapping[int, float]]:
                found = list[tuple[float, Mapping[int, float]]]()
                self.spent = watch.outside(lambda: found.append(draft(view, before)))
                return found[0]

            self._inline.draft = timed


# -- a bus ----------------------------------------


class QuietBus:
    """The methods of Bus that have nothing to do here."""

    def describe(self, presence: Presence) -> None: ...
    def close(self) -> None: ...


class DirectBus(QuietBus):
    """A Bus for a lead and one worker in one process, on which messages arrive at once.

    The worker drafts only in draft().
    """

    def __init__(self, presence: Presence, drafter: Drafter, clock: Callable[[], float]) -> None:
        self.presence = presence
        self.worker = Worker(self, presence, drafter, clock=clock)

    def start(self, listener: Listener) -> None:
        self.lead = listener
        listener.peers([self.presence])

    def send(self, to: str, message: Message) -> None:
        (self.worker if to == self.presence.id else self.lead).received(message)

    def draft(self) -> None:
        """Draft until there is nothing left to guess."""
        n_drafted = -1
        while self.worker.n_drafted > n_drafted:
            n_drafted = self.worker.n_drafted
            self.worker.turn(wait=False)
