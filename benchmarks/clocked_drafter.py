"""A drafter under a virtual clock, for benchmarks.clocked: on a processor of its own, or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.prepared import DirectBus
from drafters.kinds import MAX_DRAFT_ROWS
from server.drafting.model_drafter import ModelDrafter
from server.llama.backend import Backend, Batch, Logits
from server.llama.shapes import Shapes
from server.speculation.wire.messages import (
    ROOT,
    Commit,
    Draft,
    Message,
    Open,
    chain_next,
    decode,
    encode,
)
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.benchmarks.virtual import TT_US, World

DRAFT_ROW = 0.1  # 1.2 td for 3 rows, as 1B on an H200. Twice: alternatives gain less
N_BRANCHES = 8  # the default of duo
MOST_AT_ONCE = 8
# Of a drafter on an H200, in microseconds, with a 1B model in F16: a decode of one row; what each further row
# adds (assumed); a decode with other sequences, or other rows wanted, than the one before (llama.cpp builds
# its graph again); the work from logits to the next decode, and for each row; messages and all else, which a
# decode that was started before hides. So a guess takes 1.25 ms alone, and 1.75 if its decode starts after
# all that, as measured. With these times paths alone make 1.455 tokens a step, on an H200 1.45 (RESULTS A).
GPU_US, GPU_ROW_US, REBUILD_US, CHOOSE_US, CHOOSE_ROW_US, REST_US = 1100, 44, 1000, 100, 50, 500


class OutcomeRecall:
    """Counts wrong guesses, and those beside which the right one had arrived when the lead told so."""

    def __init__(self) -> None:
        self.n_wrong = self.n_found = 0
        self._guesses: dict[int, dict[int, int]] = {}  # by chain before them: confidence by token
        self._chains: dict[int, int] = {}  # after the last committed token, by session

    @property
    def recall(self) -> float:
        """Return the share of wrong guesses beside which the right one had arrived; 1 if none was wrong."""
        return self.n_found / self.n_wrong if self.n_wrong else 1.0

    def arrived(self, message: Message) -> None:
        if not isinstance(message, Draft):
            return
        chains = list[int]()
        for token, parent, confidence in zip(
            message.tokens, message.parents, message.confidences, strict=True
        ):
            before = message.chain if parent == ROOT else chains[parent]
            self._guesses.setdefault(before, {})[token] = confidence
            chains.append(chain_next(before, token))

    def sent(self, message: Message) -> None:
        if isinstance(message, Open):
            self._chains[message.session] = message.chain
        elif isinstance(message, Commit):
            chain = self._chains[message.session]
            for token in message.tokens:
                guesses = self._guesses.get(chain, {token: 0})
                wrong = max(guesses, key=guesses.__getitem__) != token
                self.n_wrong += wrong
                self.n_found += wrong and token in guesses
                chain = chain_next(chain, token)
            self._chains[message.session] = chain


class ClockedDrafter(DirectBus):
    """A worker that makes r guesses per plain step, alone in a world.

    Its turns take as long as their decodes. It hears the lead at the next turn, and what it sends leaves at a
    turn's end. shapes: cost of decodes as it sees it; by default what they take here. tt_us: time of the
    lead's plain step. latency_us: of a message, each way.
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
        self.outcomes = OutcomeRecall()
        card = vocabulary_card(backend.vocab)
        presence = Presence("drafter", "drafter", "draft", "0", card, MOST_AT_ONCE, kernel="there")
        steady = {n: td_us * (1 + DRAFT_ROW * (n - 1)) / 1e6 for n in (1, 2, 3)}
        shapes = shapes or Shapes(steady, steady)
        drafter = ModelDrafter(backend, n_branches=N_BRANCHES, shapes=shapes, clock=self._clock)
        super().__init__(presence, drafter, self._clock)

    def send(self, to: str, message: Message) -> None:
        if to != self.presence.id:
            delay_us = self._turn_us + self._latency_us
            self.world.after(delay_us, lambda: self._deliver(decode(encode(message))))
            return
        self.outcomes.sent(message)
        if self._latency_us:
            self.world.after(self._latency_us, lambda: self._hear(message))
        else:
            self._hear(message)

    def _deliver(self, message: Message) -> None:
        self.outcomes.arrived(message)
        self.lead.received(message)

    def _hear(self, message: Message) -> None:
        self.worker.received(decode(encode(message)))
        if self._asleep:
            self._asleep = False
            self.world.after(0, self._turn)

    def paced(self) -> AbstractContextManager[None]:
        """Have decodes take their time."""
        return told(self.backend, self.decoded)

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


@contextmanager
def told(backend: Backend, decoded: Callable[[int], None]) -> Generator[None]:
    """Call `decoded` with the rows of each decode."""
    plain = backend.decode

    def decode(batch: Batch) -> Logits:
        logits = plain(batch)
        decoded(len(batch))
        return logits

    backend.decode = decode
    yield
    backend.decode = plain


class GpuDrafter(ClockedDrafter):
    """A drafter whose GPU decodes while it handles the guesses before, if it started the decode early."""

    def __init__(self, backend: Backend, *, tt_us: int = TT_US, latency_us: int = 0) -> None:
        """Begin on a backend that has its own copy of attributes, of which `overlaps` is set."""
        backend.overlaps = True
        steady = {n: self._decode_us(n) / 1e6 for n in range(1, MAX_DRAFT_ROWS + 1)}
        mixed = {n: s + REBUILD_US / 1e6 for n, s in steady.items()}
        r = tt_us / (GPU_US + CHOOSE_US + CHOOSE_ROW_US)
        super().__init__(backend, r, Shapes(steady, mixed), tt_us=tt_us, latency_us=latency_us)
        self._shape: Any = None  # of the decode before
        self._decodes = False  # in this turn

    @staticmethod
    def _decode_us(n_rows: int) -> int:
        return GPU_US + GPU_ROW_US * (n_rows - 1)

    def _take_us(self, batch: Batch) -> int:
        shape, before = (tuple(batch.seqs), tuple(batch.wanted)), self._shape
        self._shape, self._decodes = shape, True
        self._turn_us += CHOOSE_ROW_US * sum(batch.wanted)
        return self._decode_us(len(batch)) + REBUILD_US * (shape != before)

    @contextmanager
    def paced(self) -> Generator[None]:
        plain, decode_now = self.backend.start, self.backend.decode
        inside = list[Batch]()  # a backend may start what it decodes, or decode what it starts

        def start(batch: Batch) -> Callable[[], Logits]:
            inside.append(batch)
            logits = plain(batch)().copy()
            inside.clear()
            ends = self._take_us(batch) + self._now_us

            def finish() -> Logits:
                self._decodes = True
                self._turn_us += max(0, ends - self._now_us) + CHOOSE_US
                return logits

            return finish

        def decode(batch: Batch) -> Logits:
            return decode_now(batch) if inside else start(batch)()

        self.backend.start, self.backend.decode = start, decode
        yield
        del self.backend.start, self.backend.decode

    def work(self) -> None:
        self._decodes = False
        super().work()
        self._turn_us += REST_US * self._decodes

    @property
    def _now_us(self) -> int:
        return self.world.now_us + self._turn_us
