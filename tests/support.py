"""An engine over the toy model in a test: one thread, no Redis, no weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from server.cache.snapshots import Snapshots
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Failed, Finished, Started
from server.engine.proposer import (
    NOTHING,
    NoProposer,
    OpenedSession,
    Plan,
    Proposal,
    Proposer,
    Step,
    Upcoming,
)
from server.engine.request import GenerationRequest, Speculation
from server.engine.scheduler import Limits
from server.sampling.draw import Row
from server.sampling.params import SamplingParams
from tests.checks import check_engine
from tests.fake_backend import FakeBackend, FakeVocabulary

EOG = FakeVocabulary.eog
ENDLESS = 1 << 24  # tokens of context: a reply without an end of its own goes on for hours
PROMPT = tuple(b"Once upon a time there was a lead and a drafter. ")


def until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Wait until condition() is true, which another thread or process makes it.

    Raises AssertionError(what) after this many seconds.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def request(
    prompt: Sequence[int] = PROMPT,
    *,
    temperature: float = 0.0,
    seed: int = 7,
    max_tokens: int | None = 120,
    stop_tokens: frozenset[int] = EOG,
    draft_max: int | None = None,
) -> GenerationRequest:
    """Return a request without sampling filters.

    At temperature 1 any token may be drawn, so that a mistake shows.
    """
    sampling = SamplingParams(temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
    return GenerationRequest(tuple(prompt), sampling, max_tokens, stop_tokens, Speculation(draft_max))


@dataclass(slots=True)
class Outcome:
    """The events of one session."""

    events: list[Event] = field(default_factory=list[Event])

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(t for e in self.events if isinstance(e, Committed) for t in e.tokens)

    @property
    def started(self) -> Started:
        return next(e for e in self.events if isinstance(e, Started))

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished), last
        return last

    @property
    def ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Finished | Failed)


class Harness:
    """An engine, and the outcome of each session by id."""

    def __init__(
        self,
        backend: FakeBackend | None = None,
        proposer: Proposer | None = None,
        *,
        n_slots: int = 4,
        limits: Limits | None = None,
        snapshots: Snapshots | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.backend = backend or FakeBackend()
        self.outcomes: dict[int, Outcome] = {}
        self.engine = Engine(
            self.backend,
            proposer or NoProposer(),
            lambda id, event: self.outcomes[id].events.append(event),
            n_slots=n_slots,
            limits=limits or Limits(n_batch=self.backend.n_batch, n_chunk=16),
            clock=clock or time.perf_counter,
        )
        if snapshots is not None:
            self.engine.residence.save_to(snapshots)

    def submit(self, *requests: GenerationRequest) -> list[int]:
        ids: list[int] = []
        for one in requests:
            id = len(self.outcomes) + 1
            self.outcomes[id] = Outcome()
            self.engine.submit(id, one)
            ids.append(id)
        return ids

    def run(self, *requests: GenerationRequest) -> list[Outcome]:
        """Submit these requests and step until the engine is idle. Returns their outcomes.

        Raises if the engine left a sequence or a cell behind (check_engine).
        """
        ids = self.submit(*requests)
        while self.engine.step():
            pass
        check_engine(self.engine)
        return [self.outcomes[id] for id in ids]


class OracleProposer(Proposer):
    """Proposes the rest of the first of `texts` (prompt + reply) that begins with the committed tokens.

    wrong_every: the guess at every position divisible by it is wrong; 0 for none.
    """

    def __init__(self, texts: Sequence[Sequence[int]], *, wrong_every: int = 0) -> None:
        self._texts = [list(text) for text in texts]
        self._wrong_every = wrong_every
        self._open: dict[int, Sequence[int]] = {}
        self.proposed = 0
        self.accepted = 0

    def open(self, session: OpenedSession) -> None:
        self._open[session.id] = session.tokens

    def plan(self, step: Upcoming) -> Plan:
        return Plan([self._propose(ask.session, ask.limit) for ask in step.asks()])

    def _propose(self, session: int, limit: int) -> Proposal:
        tokens = list(self._open[session])
        for text in self._texts:
            if text[: len(tokens)] == tokens:
                ahead = text[len(tokens) : len(tokens) + limit]
                break
        else:
            return NOTHING
        for i in range(len(ahead)):
            if self._wrong_every and (len(tokens) + i) % self._wrong_every == 0:
                ahead[i] = (ahead[i] + 1) % 256
        self.proposed += len(ahead)
        return Proposal(tuple(ahead), tuple(range(-1, len(ahead) - 1)), ("oracle",) * len(ahead))

    def learn(self, step: Step) -> None:
        tallies = [tally for outcome in step.outcomes for tally in outcome.tally.values()]
        self.accepted += sum(accepted for _, accepted in tallies)

    def close(self, session: int, *, keep: bool) -> None:
        del self._open[session]

    def idle(self) -> bool:
        return not self._open


def probability(row: Row, token: int) -> float:
    """Return the softmax probability of one token at temperature 1, unfiltered."""
    top = float(row.max())
    return float(np.exp(np.float64(row[token]) - top) / np.exp(row - np.float32(top)).sum())
