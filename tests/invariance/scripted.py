"""Drafters for the invariance tests: an honest one, a hostile one and a late one."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from server.engine.proposer import ROOT
from server.sampling.draw import draw
from server.sampling.noise import mix
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import Close, Commit, Draft, Message, Open, Refuse, chain_next, encode
from server.speculation.wire.presence import Presence, VocabularyCard
from tests.fake_backend import FakeModel
from tests.memory_bus import MemoryBus, MemoryPool

N_AHEAD = 5
TRUTH = FakeModel()  # the lead's model

Shape: TypeAlias = Literal["linear", "tree"]


@dataclass(slots=True)
class _Known:
    opened: Open
    chain: int
    tokens: list[int]


@dataclass(slots=True)
class _Bough:
    """A part of a tree: parallel lists as in a Draft.

    It also has the tokens of its path, and the chain hash after them.
    """

    tokens: list[int]
    parents: list[int]
    confidences: list[int]
    path: list[int]
    toy_chain: int

    def add(self, parent: int, token: int, confidence: int) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.confidences.append(confidence)
        return len(self.tokens) - 1


class ScriptedDrafter:
    """A drafter that answers every Open and Commit with N_AHEAD guesses of a toy model.

    error: share of wrong ones. 'linear' sends one message; 'tree' sends two, the second continuing the first,
    and an unsure guess has an alternative, which is right where the guess is wrong.
    """

    def __init__(
        self,
        pool: MemoryPool,
        vocabulary: VocabularyCard,
        name: str = "scripted",
        *,
        error: float = 0.25,
        shape: Shape = "linear",
    ) -> None:
        self.bus: MemoryBus = pool.bus(Presence(name, "drafter", "toy", "0", vocabulary, 8))
        self.refused: str | None = None
        self._model = FakeModel(error=error, error_seed=len(name))
        self._name = name
        self._shape: Shape = shape
        self._known: dict[int, _Known] = {}

    def start(self) -> None:
        self.bus.start(self)

    def peers(self, present: Sequence[Presence]) -> None:
        self._leads = [presence.id for presence in present]

    def received(self, message: Message) -> None:
        match message:
            case Open():
                self._known[message.session] = _Known(message, message.chain, list(message.tokens))
                self.answer(message.session)
            case Commit():
                known = self._known.get(message.session)
                if known and len(known.tokens) == message.base:
                    known.tokens += message.tokens
                    known.chain = message.chain
                    self.answer(message.session)
            case Close():
                self._known.pop(message.session, None)
            case Refuse():
                self.refused = message.reason
            case _:
                raise AssertionError(f"not for a drafter: {message}")

    def answer(self, session: int) -> None:
        """Send drafts that follow the committed tokens."""
        for draft in self.drafts(session):
            self.send(draft)

    def drafts(self, session: int) -> list[Draft]:
        known = self._known[session]
        toy_chain = 0
        for token in known.tokens:
            toy_chain = mix(toy_chain + token + 1)
        n_first = N_AHEAD if self._shape == "linear" else N_AHEAD // 2
        base, chain, drafts = len(known.tokens), known.chain, list[Draft]()
        for n in (n_first, N_AHEAD - n_first):
            if n:
                bough = self._grow(toy_chain, base + known.opened.n_dropped, n, known.opened.sampling)
                drafts.append(self._draft(session, base, chain, bough))
                base += n
                toy_chain = bough.toy_chain
                for token in bough.path:
                    chain = chain_next(chain, token)
        return drafts

    def _grow(self, toy_chain: int, position: int, n: int, sampling: SamplingParams) -> _Bough:
        """Return n guesses after the context with this chain hash, and their alternatives."""
        bough, at = _Bough([], [], [], [], toy_chain), ROOT
        for _ in range(n):
            row = self._model.logits(bough.toy_chain)
            token = draw(row, sampling, position)
            if self._shape == "linear":
                at = bough.add(at, token, 200)
            else:
                right = draw(TRUTH.logits(bough.toy_chain), sampling, position)
                unsure = right != token or mix(bough.toy_chain) % 4 == 0
                parent, at = at, bough.add(at, token, 150 if unsure else 220)
                if right != token:
                    at, token = bough.add(parent, right, 100), right
                elif unsure:
                    row[token] = -np.inf
                    bough.add(parent, int(row.argmax()), 100)
            bough.path.append(token)
            bough.toy_chain = mix(bough.toy_chain + token + 1)
            position += 1
        return bough

    def _draft(self, session: int, base: int, chain: int, bough: _Bough) -> Draft:
        confidences = bytes(bough.confidences)
        parents, tokens = tuple(bough.parents), tuple(bough.tokens)
        return Draft(self._name, session, base, chain, 100, parents, tokens, confidences)

    def send(self, draft: Draft) -> None:
        for lead in self._leads:
            self.bus.send(lead, draft)


_NOISE = (b"", b"\x01", b"\x01\x05" + b"\xff" * 60, bytes(1_000_000))


class LyingDrafter(ScriptedDrafter):
    """A drafter that sends what a hostile or broken process could send, between honest drafts."""

    def __init__(self, pool: MemoryPool, vocabulary: VocabularyCard, *, shape: Shape = "linear") -> None:
        super().__init__(pool, vocabulary, "liar", shape=shape)
        self._pool = pool
        self._random = random.Random(3)

    def answer(self, session: int) -> None:
        for honest in self.drafts(session):
            for lie in self._lies(honest):
                self.send(lie)
            for lead in self._leads:
                for data in (*_NOISE, encode(honest)[:-3]):
                    self._pool.inject(lead, data)
            self.send(honest)

    def _lies(self, honest: Draft) -> list[Draft]:
        n = len(honest.tokens)
        wrong = tuple(self._random.randrange(259) for _ in range(n))
        return [
            replace(honest, tokens=wrong, confidences=bytes([self._random.choice((255, 1))] * n)),
            replace(honest, base=honest.base + 1),
            replace(honest, base=max(0, honest.base - 7)),
            replace(honest, base=2**31),
            replace(honest, chain=honest.chain ^ 1),
            replace(honest, chain=chain_next(honest.chain, wrong[0])),
            replace(honest, tokens=(-1, *honest.tokens[1:])),
            replace(honest, tokens=(*honest.tokens[:-1], 259)),
            replace(honest, tokens=(2**31 - 1,) * n),
            replace(honest, parents=(ROOT,) * n, tokens=wrong),
            replace(honest, session=honest.session + 1),
            replace(honest, drafter="somebody else"),
            Draft(honest.drafter, honest.session, honest.base, honest.chain, 0, (), (), b""),
            replace(honest, parents=(ROOT,) * 256, tokens=tuple(range(256)), confidences=bytes([1] * 256)),
        ]


class StaleDrafter(ScriptedDrafter):
    """A drafter that sends each draft three commits late."""

    def __init__(self, pool: MemoryPool, vocabulary: VocabularyCard, *, shape: Shape = "linear") -> None:
        super().__init__(pool, vocabulary, "stale", error=0.1, shape=shape)
        self._late: dict[int, deque[list[Draft]]] = {}

    def answer(self, session: int) -> None:
        late = self._late.setdefault(session, deque())
        late.append(self.drafts(session))
        if len(late) > 3:
            for draft in late.popleft():
                self.send(draft)
