"""A lead over the toy model whose context is short, and drafts for texts longer than it."""

from __future__ import annotations

from dataclasses import replace

from server.engine.proposer import OpenedSession, Proposal
from server.engine.request import GenerationRequest
from tests.fake_backend import FakeBackend, FakeModel
from tests.support import PROMPT, Harness, OracleProposer, request

ENDLESS = FakeModel(eog_rate=0.0)
N_CTX, N_KEEP, N = 90, 20, 300


def asked(
    *, n_keep: int | None = N_KEEP, temperature: float = 0.0, first: int = 0, n: int = N
) -> GenerationRequest:
    prompt = (first, *PROMPT) if first else PROMPT
    return replace(request(prompt, temperature=temperature, max_tokens=n), n_keep=n_keep)


def backend(*, can_shift: bool = True, can_trim: bool = True, n_cells: int = 2000) -> FakeBackend:
    return FakeBackend(ENDLESS, n_cells=n_cells, n_ctx=N_CTX, can_shift=can_shift, can_trim=can_trim)


def alone(ask: GenerationRequest, *, can_shift: bool = True) -> tuple[int, ...]:
    [outcome] = Harness(backend(can_shift=can_shift)).run(ask)
    return outcome.tokens


class Following(OracleProposer):
    """An oracle that knows whole texts and proposes what follows a session's tokens in one of them."""

    def __init__(self, texts: list[tuple[int, ...]], *, wrong_every: int = 0) -> None:
        super().__init__(texts, wrong_every=wrong_every)
        self.opened: list[int] = []
        self.dropped: list[int] = []

    def open(self, session: OpenedSession) -> None:
        assert session.id not in self._open
        super().open(session)
        self.opened.append(len(session.tokens))
        self.dropped.append(session.n_dropped)

    def _propose(self, session: int, limit: int) -> Proposal:
        known, tokens = self._texts, list(self._open[session])
        tail = tokens[-12:]
        self._texts = [
            tokens + text[at + 12 :]
            for text in known
            for at in range(len(text) - 12)
            if text[at : at + 12] == tail
        ]
        proposal = super()._propose(session, limit)
        self._texts = known
        return proposal
