"""A lead and a drafter over the toy model and a bus in memory, on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from drafters.drafter import Drafter
from drafters.worker import Worker
from server.drafting.draft_session import GREEDY
from server.drafting.model_drafter import ModelDrafter
from server.llama.backend import Batch
from server.llama.shapes import UNKNOWN, Shapes
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import Commit, Draft, Message, Open, Want, chain_next, chain_start
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.memory_bus import MemoryPool

CARD = vocabulary_card(FakeVocabulary())
LEAD = Presence("lead", "lead", "toy", "0", CARD, 4)
OWN = Presence("drafter", "drafter", "toy", "0", CARD, 4)
PROMPT = tuple(b"a prompt of some length, so that there is something to evaluate")
ENDLESS = FakeModel(eog_rate=0.0, sharpness=30.0)


class Lead:
    """The other end, which records what it is told."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def received(self, message: Message) -> None:
        self.heard.append(message)

    def peers(self, present: Sequence[Presence]) -> None:
        pass

    def drafts(self) -> list[Draft]:
        return [message for message in self.heard if isinstance(message, Draft)]

    def wants(self) -> list[Want]:
        return [message for message in self.heard if isinstance(message, Want)]


class Scene:
    """A lead and a worker on one pool.

    The clock stands still unless a test moves it.
    """

    def __init__(
        self,
        backend: FakeBackend | None = None,
        *,
        n_branches: int = 0,
        shapes: Shapes = UNKNOWN,
        drafter: Drafter | None = None,
    ) -> None:
        """Use `drafter` instead of the model drafter over the backend, if given."""
        self.backend = backend or FakeBackend(ENDLESS)
        ticks = count()  # a guess takes some 10 us, however slow the machine is
        self.model_drafter = ModelDrafter(
            self.backend, n_branches=n_branches, shapes=shapes, clock=lambda: next(ticks) * 1e-5
        )
        self.drafter: Drafter = drafter or self.model_drafter
        self.now = 0.0
        self.pool = MemoryPool()
        self.lead = Lead()
        self.bus = self.pool.bus(LEAD)
        self.bus.start(self.lead)
        self.drafter_bus = self.pool.bus(OWN)
        self.worker = Worker(self.drafter_bus, OWN, self.drafter, clock=lambda: self.now)
        self.drafter_bus.start(self.worker)
        self.settle()

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.bus.send("drafter", message)
        self.settle()

    def settle(self) -> None:
        """Deliver messages and step until nobody has anything to do."""
        for _ in range(500):
            before = self._worked
            delivered = self.pool.pump()
            self.worker.turn(wait=False)
            if not delivered + self.pool.pump() and self._worked == before:
                return
        raise AssertionError("never at rest")

    @property
    def n_failures(self) -> int:
        """Recent failed decodes."""
        sessions = self.worker._sessions.values()  # pyright: ignore[reportPrivateUsage]
        return sum(session.n_failures for session in sessions)

    @property
    def _worked(self) -> tuple[int, int, bool]:
        flies = self.model_drafter._started is not None  # pyright: ignore[reportPrivateUsage]
        return len(self.backend.widths), self.worker.n_drafted, flies

    def drafted(self, session: int = 1) -> list[int]:
        return [t for m in self.lead.drafts() if m.session == session for t in m.tokens]


def open_(
    tokens: Sequence[int] = PROMPT,
    session: int = 1,
    max_ahead: int = 6,
    sampling: SamplingParams = GREEDY,
    *,
    salt: str = "",
) -> Open:
    return Open("lead", session, chain_start(tokens), max_ahead, sampling, tuple(tokens), salt)


def commit(*tokens: int, session: int = 1, prompt: Sequence[int] = PROMPT) -> Commit:
    """Return a commit of these tokens after the prompt."""
    chain = chain_start(prompt)
    for token in tokens:
        chain = chain_next(chain, token)
    return Commit(session, len(prompt), chain, tokens)


def told(n: int, prompt: Sequence[int] = PROMPT, model: FakeModel = ENDLESS) -> list[int]:
    """Return the toy's greedy text after the prompt, computed without a drafter."""
    backend, tokens = FakeBackend(model), list(prompt)
    n_known = 0
    while len(tokens) < len(prompt) + n:
        batch = Batch()
        batch.extend(0, n_known, tokens[n_known : n_known + backend.n_batch], 1)
        n_known += len(batch)
        logits = backend.decode(batch)
        if n_known == len(tokens):
            tokens.append(int(logits[0].argmax()))
    return tokens[len(prompt) :]
