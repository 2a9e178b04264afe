"""An engine and a browser that draft badly, as parts of a world with a virtual clock."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from random import Random
from typing import Any, Literal, TypeAlias, cast

from benchmarks.machines import REPACKED
from benchmarks.prepared import QuietBus
from drafters.browser_link import BrowserError, BrowserLink
from drafters.engine_client import DraftEngine, Reply
from drafters.engine_dialects import Said
from drafters.engine_drafter import EngineDrafter
from drafters.worker import Worker
from server.speculation.wire.bus import Listener
from server.speculation.wire.messages import Message, decode, encode
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.benchmarks.virtual import LEAD, World
from tests.fake_backend import FakeVocabulary

N_TOKENS = 1500
LATENCY_US = 300  # of a message: Redis on one machine
GUESS_US = 1500  # of a well engine: an eighth of a step
N_MOODS = (1, 6)
VOCAB = FakeVocabulary()
CARD = vocabulary_card(VOCAB)

Mood: TypeAlias = Literal["well", "slow", "late", "lying", "mad", "breaking", "silent", "ending", "away"]
MOODS: tuple[Mood, ...] = ("slow", "late", "lying", "mad", "breaking", "silent", "ending", "away")
"""What is wrong with an engine.

slow: a guess takes a step or more; late: so does the first one alone; lying: sure of wrong tokens; mad: ids
that nobody has, or lines that mean nothing; breaking: fails after some guesses; silent: says nothing more of
a request; ending: says that the text ends; away: a browser has left, an engine cannot be reached.
"""


@dataclass(slots=True)
class Moods:
    """An engine's mood at each moment: well, and from the seed's moments on something else for a while."""

    changes: list[tuple[int, Mood]]  # microseconds, in order

    @classmethod
    def of(cls, seed: int) -> Moods:
        chance, end_us = Random(seed), round(N_TOKENS * 1000 * REPACKED.curve[1])
        moods: list[Mood] = ["well", *MOODS]
        changes: list[tuple[int, Mood]] = [(0, chance.choice(moods))]
        n = chance.randint(*N_MOODS)
        changes.extend((chance.randrange(end_us), chance.choice(moods)) for _ in range(n))
        return cls(sorted(changes, key=lambda change: change[0]))

    def at(self, now_us: int) -> Mood:
        return max((change for change in self.changes if change[0] <= now_us), key=itemgetter(0))[1]


class DrafterBus(QuietBus):
    """A Bus between a lead and one worker in a world, in which messages take LATENCY_US."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.worker: Worker | None = None  # None: it has left
        self._presence = Presence("drafter", "drafter", "an engine", "0", CARD, 1, kernel="there")

    def start(self, listener: Listener) -> None:
        self._lead = listener
        self._meet()

    def join(self, engine: DraftEngine) -> None:
        """Have a drafter join that asks this engine."""
        self.worker = Worker(self, self._presence, EngineDrafter(engine, VOCAB), clock=self.world.clock)
        self.worker.peers([LEAD])
        self._meet()

    def leave(self) -> None:
        self.worker = None
        self._meet()

    def _meet(self) -> None:
        self.world.after(0, lambda: self._lead.peers([self._presence] if self.worker else []))

    def send(self, to: str, message: Message) -> None:
        data = encode(message)
        self.world.after(LATENCY_US, lambda: self._arrive(to, data))

    def _arrive(self, to: str, data: bytes) -> None:
        if to == self._presence.id:
            self._hear(data)
        else:
            self._lead.received(decode(data))

    def _hear(self, data: bytes) -> None:
        if self.worker:
            self.worker.received(decode(data))
            self.work()

    def work(self) -> None:
        """Take turns until there is nothing to do."""
        n_drafted = -1
        while self.worker and self.worker.n_drafted > n_drafted:
            n_drafted = self.worker.n_drafted
            self.worker.turn(wait=False)


@dataclass(slots=True)
class Speaker:
    """What an engine says after a prompt, token by token, in the mood of each moment."""

    world: World
    text: Sequence[int]
    moods: Moods
    chance: Random

    @property
    def mood(self) -> Mood:
        return self.moods.at(self.world.now_us)

    def delay_us(self, n_said: int) -> int:
        slow = 1000 * REPACKED.curve[1] * self.chance.uniform(1.0, 10.0)
        return round(slow if self.mood == "slow" or (self.mood == "late" and not n_said) else GUESS_US)

    def token(self, position: int) -> int:
        right = self.text[position] if position < len(self.text) else 0
        is_wrong = self.mood == "lying" or self.chance.random() < 0.2
        return (right + 1) % 256 if is_wrong else right


@dataclass(slots=True)
class VirtualEngine:
    """A DraftEngine over HTTP, without HTTP: what its client makes of the engine's answers."""

    speaker: Speaker
    bus: DrafterBus
    name: str = "the engine"
    takes_ids: bool = True
    n_at_once: int = 2
    cancel_s: float = 0.02

    def refusal(self, n_tokens: int, salt: str) -> str | None:
        return None

    def ask(
        self, prompt: str | Sequence[int], n_tokens: int, *, salt: str, ready: Callable[[], None]
    ) -> Reply:
        reply = Reply()
        state = {"cancelled": False}
        reply._cancel = lambda: state.update(cancelled=True)  # pyright: ignore[reportPrivateUsage]
        start = len(prompt)

        def go_on() -> None:
            if not state["cancelled"] and not reply.is_done and self.speaker.mood != "silent":
                self._say(reply, start, n_tokens)
                ready()
                self.bus.work()
                if not reply.is_done:
                    self._after(self.speaker.delay_us(len(reply.said)), go_on)

        self._after(self.speaker.delay_us(0), go_on)
        return reply

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        def act() -> None:
            call()
            self.bus.work()

        self._after(round(1e6 * seconds), act)

    def _after(self, delay_us: int, act: Callable[[], None]) -> None:
        self.speaker.world.after(delay_us, act)

    def _say(self, reply: Reply, start: int, n_tokens: int) -> None:
        speaker, n_said = self.speaker, len(reply.said)
        if speaker.mood in ("away", "breaking") and (speaker.mood == "away" or n_said > 2):
            reply.error, reply.is_done = "its answer broke off", True
            return
        ends = speaker.mood == "ending" and n_said > 2
        if ends or n_said == n_tokens:
            reply.said.append(Said(is_end=True, ends_text=ends))
            reply.is_done = True
            return
        token = speaker.token(start + n_said)
        if speaker.mood == "mad":
            token = speaker.chance.choice((-1, 1 << 20, token))
        reply.last_s = speaker.world.clock()
        reply.first_s = reply.first_s or reply.last_s
        second = speaker.text[min(start + n_said, len(speaker.text) - 1)]
        second = second if second != token and speaker.chance.random() < 0.5 else (token + 2) % 256
        reply.said.append(Said("", token, 0.7, second, 0.2))


class _Lines:
    """What has come from the browser."""

    def __init__(self) -> None:
        self.waiting = deque[bytes]()

    def readline(self, _most: int) -> bytes:
        return self.waiting.popleft()


class VirtualBrowser:
    """A browser at the other end of a real BrowserLink, which leaves and comes back."""

    def __init__(self, speaker: Speaker, bus: DrafterBus) -> None:
        self._speaker, self._bus = speaker, bus
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        for begins_us, mood in speaker.moods.changes:
            speaker.world.after(begins_us, self.leave if mood == "away" else self.come)
        self._link: BrowserLink | None = None

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)

    def leave(self) -> None:
        if self._link:
            self._link = None
            self._bus.leave()

    def come(self) -> None:
        if self._link is None:
            self._lines, self._held, self._request = _Lines(), list[int](), dict[str, Any]()
            self._lines.waiting.append(b'{"n_ctx": 8192}')
            self._link = BrowserLink(cast(Any, self._lines), self._writing)
            self._link.after = self._after
            self._bus.join(_Read(self._link, self._read))

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        def act() -> None:
            call()
            self._bus.work()

        self._speaker.world.after(round(1e6 * seconds), act)

    def _read(self) -> None:
        """Take the requests that have come."""
        while True:
            try:
                lines = os.read(self._reading, 1 << 16)
            except BlockingIOError:
                return
            for line in lines.splitlines():
                self._take(json.loads(line))

    def _take(self, request: dict[str, Any]) -> None:
        if "id" in request:
            self._held[request["keep"] :] = request["add"]
        self._request = request
        if "draft" in request:
            self._go_on(request, self._link, request["draft"])

    def _go_on(self, request: dict[str, Any], link: BrowserLink | None, n_left: int) -> None:
        n_said = request["draft"] - n_left

        def act() -> None:
            if request is self._request and link is self._link and self._speaker.mood != "silent":
                self._say(request, n_left)

        self._speaker.world.after(self._speaker.delay_us(n_said), act)

    def _say(self, request: dict[str, Any], n_left: int) -> None:
        mood, id, link = self._speaker.mood, request["id"], self._link
        n_said = request["draft"] - n_left
        if mood == "mad" and self._speaker.chance.random() < 0.2:
            return self._send(
                self._speaker.chance.choice((b"{}{", b"[1]", b'{"id":%d,"said":[[-1,1]]}' % id))
            )
        if mood == "breaking" and n_said > 2:
            return self._send(json.dumps({"id": id, "failed": "full"}).encode())
        if not n_left or (mood == "ending" and n_said > 2):
            return self._send(json.dumps({"id": id, "end": bool(n_left)}).encode())
        token = self._speaker.token(len(self._held))
        self._held.append(token)
        self._send(json.dumps({"id": id, "said": [[token, 0.99]]}).encode())
        if link is self._link:
            self._go_on(request, link, n_left - 1)
        return None

    def _send(self, line: bytes) -> None:
        if self._link is None:
            return
        self._lines.waiting.append(line)
        try:
            self._link.hear()
        except BrowserError:  # its process ends, and the page joins again
            self.leave()
            self._speaker.world.after(3_000_000, self.come)
        self._bus.work()


@dataclass(slots=True)
class _Read:
    """A link as a DraftEngine whose browser reads each request at once."""

    link: BrowserLink
    read: Callable[[], None]
    name: str = "the browser"
    takes_ids: bool = True
    n_at_once: int = 1
    cancel_s: float = 0.0
    refusal: Any = field(init=False)
    after: Any = field(init=False)

    def __post_init__(self) -> None:
        self.refusal, self.after = self.link.refusal, self.link.after

    def ask(
        self, prompt: str | Sequence[int], n_tokens: int, *, salt: str, ready: Callable[[], None]
    ) -> Reply:
        reply = self.link.ask(prompt, n_tokens, salt=salt, ready=ready)
        self.read()
        return reply
