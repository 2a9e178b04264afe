"""A hostile drafter."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.speculation.wire.messages import Commit, Draft, Message, Open
from server.speculation.wire.presence import Presence, vocabulary_card
from server.speculation.wire.streams import RedisBus


class Meddler:
    """A hostile drafter: answers each Open and Commit with wrong, stale and malformed drafts."""

    def __init__(self, url: str, model: Path) -> None:
        with closing(LlamaBackend(LlamaOptions(model, n_cells=256, n_seqs=1))) as backend:
            card = vocabulary_card(backend.vocab)
        self._id = f"meddler-{id(self)}"
        self._n_vocab = card.size
        self._bus = RedisBus(url, "default", Presence(self._id, "drafter", "lies", "0", card, 8))
        self._leads: list[str] = []
        self._bus.start(self)

    def peers(self, present: Sequence[Presence]) -> None:
        self._leads = [presence.id for presence in present]

    def received(self, message: Message) -> None:
        if isinstance(message, Open):
            self._lie(message.session, len(message.tokens), message.chain)
        elif isinstance(message, Commit):
            self._lie(message.session, message.base + len(message.tokens), message.chain)

    def _lie(self, session: int, base: int, chain: int) -> None:
        tokens = tuple((base * 37 + i * 11) % self._n_vocab for i in range(6))
        draft = Draft(self._id, session, base, chain, 1, (-1, 0, 1, 2, 3, 4), tokens, b"\x40" * 6)
        for lie in (
            draft,
            draft,
            replace(draft, base=base + 3),
            replace(draft, base=0),
            replace(draft, chain=chain ^ 7),
            replace(draft, tokens=(-5, self._n_vocab, 2**31 - 1, 0, 0, 0)),
            replace(draft, session=session + 1),
        ):
            for lead_id in self._leads:
                self._bus.send(lead_id, lie)

    def close(self) -> None:
        self._bus.close()
