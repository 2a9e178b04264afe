"""Drafters for the invariance tests: one honest predictor, and every way of getting it wrong."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from server.engine.proposer import ROOT
from server.llama.fake import FakeModel
from server.sampling.draw import draw
from server.sampling.noise import mix
from server.sampling.params import SamplingParams
from server.speculation.memory import MemoryBus, MemoryPool
from server.speculation.messages import Close, Commit, Draft, Message, Open, Refuse, chain_next, encode
from server.speculation.presence import Presence, VocabularyCard

N_AHEAD = 5


@dataclass(slots=True)
class _Known:
    epoch: int
    chain: int
    sampling: SamplingParams
    tokens: list[int]


class ScriptedDrafter:
    """Answers every Open and Commit with one Draft: N_AHEAD tokens of a toy model that errs now and then."""

    def __init__(
        self, pool: MemoryPool, vocabulary: VocabularyCard, name: str = "scripted", *, error: float = 0.25
    ) -> None:
        self.bus: MemoryBus = pool.bus(Presence(name, "drafter", "toy", "0", vocabulary, 8))
        self.refused: str | None = None
        self._model = FakeModel(error=error, error_seed=len(name))
        self._name = name
        self._known: dict[int, _Known] = {}

    def start(self) -> None:
        self.bus.start(self)

    def peers(self, present: Sequence[Presence]) -> None:
        self._leads = [presence.id for presence in present]

    def received(self, message: Message) -> None:
        match message:
            case Open():
                self._known[message.session] = _Known(
                    message.epoch, message.chain, message.sampling, list(message.tokens)
                )
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
        """Draft from what is committed."""
        self.send(self.guess(session))

    def guess(self, session: int) -> Draft:
        known = self._known[session]
        tokens, chain = list(known.tokens), 0
        for token in tokens:
            chain = mix(chain + token + 1)
        for _ in range(N_AHEAD):
            token = draw(self._model.logits(chain), known.sampling, len(tokens))
            tokens.append(token)
            chain = mix(chain + token + 1)
        ahead = tuple(tokens[len(known.tokens) :])
        parents = tuple(range(ROOT, len(ahead) - 1))
        base = len(known.tokens)
        return Draft(
            self._name,
            session,
            known.epoch,
            base,
            known.chain,
            100,
            parents,
            ahead,
            bytes([200] * len(ahead)),
        )

    def send(self, draft: Draft) -> None:
        for lead in self._leads:
            self.bus.send(lead, draft)


class LyingDrafter(ScriptedDrafter):
    """Between honest drafts, everything a hostile or broken process could say."""

    def __init__(self, pool: MemoryPool, vocabulary: VocabularyCard) -> None:
        super().__init__(pool, vocabulary, "liar")
        self._pool = pool
        self._random = random.Random(3)

    def answer(self, session: int) -> None:
        honest = self.guess(session)
        for lie in self._lies(honest):
            self.send(lie)
        for lead in self._leads:
            for data in (b"", b"\x01", b"\x01\x05" + b"\xff" * 60, bytes(1_000_000), encode(honest)[:-3]):
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
            replace(honest, epoch=honest.epoch + 1),
            replace(honest, drafter="somebody else"),
            Draft(honest.drafter, honest.session, honest.epoch, honest.base, honest.chain, 0, (), (), b""),
            replace(honest, parents=(ROOT,) * 256, tokens=tuple(range(256)), confidences=bytes([1] * 256)),
        ]


class StaleDrafter(ScriptedDrafter):
    """Right, but always three commits behind."""

    def __init__(self, pool: MemoryPool, vocabulary: VocabularyCard) -> None:
        super().__init__(pool, vocabulary, "stale", error=0.1)
        self._late: dict[int, deque[Draft]] = {}

    def answer(self, session: int) -> None:
        late = self._late.setdefault(session, deque())
        late.append(self.guess(session))
        if len(late) > 3:
            self.send(late.popleft())
