"""The real engine and the real proposer under a clock of their own: no processes, no noise, no waiting.

Only three things are scripted. The toy backend's decode moves the clock by tt v(drafted rows) and delivers
what arrives meanwhile. The bus delivers each message, encoded and decoded as over a wire, one latency after
it was sent. The drafter is `replay.ReplayDrafter`. Everything between them, from the drain of the inbox to
the tree and the verification, is what serves requests. What comes out is the time the text would have taken.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.renewal import Scheme
from benchmarks.replay import Mistakes, ReplayDrafter, Timer
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Finished
from server.engine.proposer import NoProposer, Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.backend import Batch, Logits
from server.llama.fake import FakeBackend, FakeModel, FakeVocabulary
from server.sampling.params import SamplingParams
from server.speculation.bus import Listener
from server.speculation.messages import Message, decode, encode
from server.speculation.presence import Presence, vocabulary_card
from server.speculation.remote import RemoteDrafters
from server.speculation.speculator import Policy, Speculator

TT_US = 12_000  # of a plain step: divisible by many r, so that drafts and steps meet as in the formulas
N_SEQS = 4
MAX_AHEAD = 250  # no bound in effect: the formulas know none
PROMPT = tuple(b"Once upon a time there was a lead and a drafter. ")
MODEL = FakeModel(eog_rate=0.0)

_CARD = vocabulary_card(FakeVocabulary())
LEAD = Presence("lead", "lead", "toy", "0", _CARD, 1)


class World:
    """A clock in whole microseconds, and what is to happen when."""

    def __init__(self) -> None:
        self.now_us = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def clock(self) -> float:
        return self.now_us / 1e6

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do it then; of two things at the same time, first what was asked for first."""
        heapq.heappush(self._due, (self.now_us + delay_us, next(self._order), action))

    def advance(self, duration_us: int = 0) -> None:
        """Let time pass and do what falls due, what that in turn brings about included."""
        end = self.now_us + duration_us
        while self._due and self._due[0][0] <= end:
            self.now_us, _, action = heapq.heappop(self._due)
            action()
        self.now_us = end


@dataclass
class PacedBackend(FakeBackend):
    """The toy, with the costs of a real target: a step of n rows takes tt v(n - 1)."""

    pace: Callable[[int], None] = field(default=lambda n_rows: None)

    def decode(self, batch: Batch) -> Logits:
        logits = super().decode(batch)
        self.pace(len(batch))
        return logits


class LeadBus:
    """Implements Bus towards one drafter at a distance."""

    def __init__(self, world: World, latency_us: int, drafter: ReplayDrafter) -> None:
        self._world = world
        self._latency_us = latency_us
        self._drafter = drafter

    def start(self, listener: Listener) -> None:
        """The drafter is seen, and its messages arrive, from now on."""

        def deliver(message: Message) -> None:
            data = encode(message)
            self._world.after(self._latency_us, lambda: listener.received(decode(data)))

        self._drafter.connect(deliver)
        listener.peers([self._drafter.presence])

    def send(self, to: str, message: Message) -> None:
        if to == self._drafter.presence.id:
            data = encode(message)
            self._world.after(self._latency_us, lambda: self._drafter.received(decode(data)))

    def describe(self, presence: Presence) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Outcome:
    """tokens: the whole text. seconds: virtual, of all of it but the first token."""

    tokens: tuple[int, ...]
    seconds: float
    n_steps: int
    n_drafted: int
    n_accepted: int


def make_proposer(bus: LeadBus, clock: Callable[[], float]) -> Proposer:
    """The lead's side of the bus, started, with everything the formulas do not know switched off."""
    remote = RemoteDrafters(bus, LEAD, max_ahead=MAX_AHEAD, clock=clock)
    bus.start(remote)
    policy = Policy(leaves=1, lookup=False, gate=False)
    return Speculator(policy, remote=remote, clock=clock)


def plain(n_tokens: int) -> Outcome:
    """Without drafts, at tt a token."""
    world = World()
    return _generate(world, Scheme(0.0, 1.0), NoProposer(), n_tokens)


def drafted(scheme: Scheme, text: Sequence[int], seed: int = 0) -> Outcome:
    """With one drafter that knows the text, its mistakes drawn from this seed."""
    world = World()
    timer = Timer(world.after, round(TT_US / scheme.r))
    mistakes = Mistakes(scheme.a, scheme.h, len(PROMPT), len(text), random.Random(seed))
    # While messages travel, the lead may need the correction of a correction, once in each of its steps
    depth = 1 + int(2 * scheme.latency + 0.999)
    drafter = ReplayDrafter(text, mistakes, timer, branch=scheme.branch, depth=depth)
    bus = LeadBus(world, round(TT_US * scheme.latency), drafter)
    return _generate(world, scheme, make_proposer(bus, world.clock), len(text) - len(PROMPT))


def speedup(scheme: Scheme, base: Outcome, seed: int = 0) -> float:
    """Of drafting over the plain run `base`, for its text. Raises AssertionError if the text changes."""
    outcome = drafted(scheme, base.tokens, seed)
    assert outcome.tokens == base.tokens, "drafts changed the text"
    return base.seconds / outcome.seconds


def _generate(world: World, scheme: Scheme, proposer: Proposer, n_tokens: int) -> Outcome:
    """The lead's part, from request to end."""
    n_rows = scheme.k_max + len(PROMPT)
    n_cells = len(PROMPT) + n_tokens + n_rows
    backend = PacedBackend(
        MODEL,
        n_cells=n_cells,
        n_ctx=n_cells,
        n_seqs=N_SEQS,
        n_batch=n_rows,
        pace=lambda n: world.advance(round(TT_US * scheme.v(n - 1))),
    )
    events: list[Event] = []
    engine = Engine(
        backend,
        proposer,
        lambda _, event: events.append(event),
        n_slots=1,
        limits=Limits(n_batch=n_rows, draft_max=scheme.k_max, leaves=1),
        clock=world.clock,
    )
    engine.submit(1, GenerationRequest(PROMPT, SamplingParams(temperature=0.0), n_tokens))
    world.advance()
    while engine.step():
        world.advance()
    engine.check()
    return _outcome(events)


def _outcome(events: Sequence[Event]) -> Outcome:
    tokens = [token for event in events if isinstance(event, Committed) for token in event.tokens]
    last = events[-1]
    assert isinstance(last, Finished), last
    stats = last.stats
    seconds = stats.predicted_ms / 1000
    return Outcome((*PROMPT, *tokens), seconds, stats.n_steps, stats.n_drafted, stats.n_accepted)
