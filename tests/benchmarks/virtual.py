"""The real engine and the real proposer under a clock of their own: no processes, no noise, no waiting.

Scripted are the costs only. The toy backend's decode moves the clock by tt v(drafted rows) and delivers what
arrives meanwhile. Each message arrives, encoded and decoded as on a wire, one latency after it was sent. The
drafter is the replay drafter with a real session, in a loop on this clock. Everything else, from the drain of
the inbox to the tree and the verification, is what serves requests. The result is how long the text would
have taken.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.prepared import QuietBus
from drafters.replay import ReplayDrafter, Script
from server.drafting.draft_session import DraftSession
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Finished
from server.engine.proposer import NoProposer, Proposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.backend import Batch, Logits
from server.sampling.params import SamplingParams
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Policy, Speculator
from server.speculation.wire.bus import Listener
from server.speculation.wire.messages import Close, Commit, Message, Open, decode, encode
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.checks import check_engine
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary
from tests.formulas import Scheme

TT_US = 12_000  # of a plain step: divisible by many r, so that drafts and steps meet as in the formulas
N_SEQS = 4
MAX_AHEAD = 250  # more than the drafter ever gets ahead: the formulas know no bound
PROMPT = tuple(b"Once upon a time there was a lead and a drafter. ")
MODEL = FakeModel(eog_rate=0.0)
K_MAX = 128  # drafted tokens that a step may verify: more than ever arrive
RUNS, TOKENS = 300, 1500  # least runs between mismatches, and least tokens, of a measured text
BLOCK = 200  # run lengths whose shares are exact

_CARD = vocabulary_card(FakeVocabulary())
LEAD = Presence("lead", "lead", "toy", "0", _CARD, 1)
DRAFTER = Presence("replay", "drafter", "text", "0", _CARD, 1)


class World:
    """A clock in whole microseconds, and actions that wait for their time."""

    def __init__(self) -> None:
        self.now_us = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def clock(self) -> float:
        return self.now_us / 1e6

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do it then; of two actions at one time the earlier request goes first."""
        heapq.heappush(self._due, (self.now_us + delay_us, next(self._order), action))

    def advance(self, duration_us: int = 0) -> None:
        """Let time pass and do what falls due, with everything that follows from it."""
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


class Replay(ReplayDrafter):
    """A drafter that errs at every position with probability 1 - a, without the noise of chance."""

    def __init__(self, scheme: Scheme, text: Sequence[int], seed: int) -> None:
        super().__init__([text], Script(scheme.a, 0.0), sleep=lambda seconds: None)
        places = itertools.accumulate(
            gaps(scheme.a, random.Random(seed)), lambda place, gap: place + 1 + gap, initial=len(PROMPT) - 1
        )
        next(places)  # before the first mistake
        self.mistakes = set(itertools.takewhile(lambda place: place < len(text), places))

    def _chance_at(self, text: int, position: int) -> float:
        return float(position in self.mistakes)


def gaps(a: float, rng: random.Random) -> Iterator[int]:
    """Yield how many guesses are right before the next wrong one, each right with probability a.

    Values come as often as they should, only their order is drawn: a few hundred independent runs leave an
    error of some per cent in a speed-up, shuffled quantiles a tenth of that.
    """
    while True:
        block = [math.floor(math.log((i + 0.5) / BLOCK) / math.log(a)) for i in range(BLOCK)]
        # Quantiles at the middle of each share miss a little of the long tail; one of them makes up for it
        block[0] += round(BLOCK * a / (1 - a)) - sum(block)
        rng.shuffle(block)
        yield from block


class DrafterBus(QuietBus):
    """A Bus towards one drafter, and that drafter's loop.

    A guess takes td; one begun before the path changed is discarded.
    """

    def __init__(self, world: World, scheme: Scheme, drafter: ReplayDrafter) -> None:
        self._world = world
        self._latency_us = round(TT_US * scheme.latency)
        self._td_us = round(TT_US / scheme.r)
        self._drafter = drafter
        self._session: DraftSession | None = None
        self._run = 0  # counts changes of path

    def start(self, listener: Listener) -> None:
        self._listener = listener
        listener.peers([DRAFTER])

    def send(self, to: str, message: Message) -> None:
        if to == DRAFTER.id:
            self._deliver(message, self._received)

    def _deliver(self, message: Message, to: Callable[[Message], None]) -> None:
        data = encode(message)
        self._world.after(self._latency_us, lambda: to(decode(data)))

    def _received(self, message: Message) -> None:
        session = self._session
        if isinstance(message, Open):
            self._session = DraftSession(message)
            self._begin()
        elif isinstance(message, Close):
            self._session = None
        elif isinstance(message, Commit) and session:
            before, waited = list(session.tokens), not self._drafter.wants(session)
            session.commit(message)
            if session.tokens != before or waited:
                self._begin()

    def _begin(self) -> None:
        self._run += 1
        run = self._run
        if self._session and self._drafter.wants(self._session):
            self._world.after(self._td_us, lambda: self._drafted(run))

    def _drafted(self, run: int) -> None:
        if run == self._run and self._session:
            self._drafter.advance([self._session])
            self._publish(self._session)
            self._begin()

    def _publish(self, session: DraftSession) -> None:
        for draft in session.take_drafts(DRAFTER.id, self._td_us):
            self._deliver(draft, self._listener.received)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One generation's result.

    tokens: the whole text. seconds: virtual, of all but the first token. undrafted_s: the engine's estimate
    of them without drafts.
    """

    tokens: tuple[int, ...]
    seconds: float
    n_drafted: int
    n_accepted: int
    undrafted_s: float


def make_proposer(bus: DrafterBus, clock: Callable[[], float]) -> Proposer:
    """Return the lead's side of the bus, started, with everything off that the formulas do not know."""
    remote = RemoteDrafters(bus, LEAD, max_ahead=MAX_AHEAD, clock=clock)
    bus.start(remote)
    policy = Policy(leaves=1, lookup=False, gate=False)
    return Speculator(policy, remote=remote, clock=clock)


def plain(n_tokens: int) -> Outcome:
    """Run without drafts, at tt a token."""
    return _generate(World(), Scheme(0.0, 1.0), NoProposer(), n_tokens)


def drafted(scheme: Scheme, text: Sequence[int], seed: int = 0) -> Outcome:
    """Run with one drafter that knows the text."""
    world = World()
    bus = DrafterBus(world, scheme, Replay(scheme, text, seed))
    return _generate(world, scheme, make_proposer(bus, world.clock), len(text) - len(PROMPT))


def speedup(scheme: Scheme, base: Outcome, seed: int = 0) -> float:
    """Return the time of the plain run `base` divided by that with drafts.

    Raises AssertionError if the text changes.
    """
    outcome = drafted(scheme, base.tokens, seed)
    assert outcome.tokens == base.tokens, "drafts changed the text"
    return base.seconds / outcome.seconds


def measured(scheme: Scheme) -> float:
    """Return the speed-up over a text long enough for RUNS runs."""
    return speedup(scheme, _base(max(TOKENS, round(RUNS / (1 - scheme.a)))))


@functools.cache
def _base(n_tokens: int) -> Outcome:
    return plain(n_tokens)


def _generate(world: World, scheme: Scheme, proposer: Proposer, n_tokens: int) -> Outcome:
    """Play the lead's part from request to end."""
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
    check_engine(engine)
    tokens = [token for event in events if isinstance(event, Committed) for token in event.tokens]
    last = events[-1]
    assert isinstance(last, Finished), last
    stats = last.stats
    seconds, undrafted_s = stats.predicted_ms / 1e3, stats.undrafted_ms / 1e3
    return Outcome((*PROMPT, *tokens), seconds, stats.n_drafted, stats.n_accepted, undrafted_s)
