"""A lead and a drafter over real models and a bus in memory, on one thread: no clock matters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from drafters.drafter import Drafter
from drafters.translating import TranslatingDrafter
from drafters.worker import Worker
from server.cache.snapshots import Snapshots
from server.drafting.model_drafter import ModelDrafter
from server.engine.engine import Engine
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.llama.backend import Backend, RowsCard
from server.llama.llamacpp import LlamaBackend
from server.llama.target_rows import row_source
from server.llama.with_rows import WithRows
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.wire.presence import Presence, vocabulary_card
from tests.checks import check_engine
from tests.memory_bus import MemoryPool
from tests.support import Outcome

DRAFT_MAX = 6
TURNS = 2 * DRAFT_MAX  # of the drafter between two steps: a path and its branches


class Duet:
    """A lead that verifies every guess.

    drafter: backend of one over the bus; or a head over the bus, and the rows that it reads of the lead's
    backend, which is a LlamaBackend then. inline: backend of one in the lead.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        lookup: bool = False,
        drafter: Backend | tuple[Drafter, RowsCard] | None = None,
        inline: Backend | None = None,
        snapshots: Snapshots | None = None,
        n_slots: int = 4,
    ) -> None:
        """Use these tiers below the KV cache however long a state takes to load."""
        leaves = 3 if backend.can_trim and backend.can_share else 1
        again = not backend.can_trim
        policy = Policy(leaves=leaves, lookup=lookup, gate=False, again=again, n_tail=backend.n_tail)
        card = vocabulary_card(backend.vocab)
        lead, own = (Presence(role, role, "test", "0", card, 4) for role in ("lead", "drafter"))
        self.backend = backend
        if isinstance(drafter, tuple):
            self.backend = WithRows(backend, partial(row_source, cast(LlamaBackend, backend)))
            lead, own = replace(lead, rows=drafter[1]), replace(own, rows=drafter[1])
        self._pool = MemoryPool()
        bus, other = self._pool.bus(lead), self._pool.bus(own)
        rows = self.backend if isinstance(self.backend, WithRows) else None
        remote = RemoteDrafters(bus, lead, max_ahead=DRAFT_MAX, target=rows) if drafter else None
        proposer = Speculator(policy, remote=remote, inline=DraftModel(inline) if inline else None)
        self._worker: Worker | None = None
        for model in filter(None, (None if isinstance(drafter, tuple) else drafter, inline)):
            for seq in range(model.n_seqs):
                model.trim(seq, 0)  # of another duet
        if drafter and remote:
            guesser = drafter[0] if isinstance(drafter, tuple) else _drafter(drafter, backend)
            bus.start(remote)
            self._worker = Worker(other, own, guesser)
            other.start(self._worker)
        limits = Limits(
            n_batch=backend.n_batch,
            draft_max=DRAFT_MAX,
            leaves=leaves,
        )
        self._outcomes: list[Outcome] = []
        self.engine = Engine(
            self.backend,
            proposer,
            lambda id, event: self._outcomes[id].events.append(event),
            n_slots=n_slots,
            limits=limits,
        )
        if snapshots is not None:
            self.engine.residence.save_to(snapshots)
            self.engine.residence.move_costs.token_s.value = 1.0  # loading pays

    def run(self, *requests: GenerationRequest) -> list[Outcome]:
        """Run all requests at once to their ends."""
        first = len(self._outcomes)
        for one in requests:
            self._outcomes.append(Outcome())
            self.engine.submit(len(self._outcomes) - 1, one)
        self._deliver()
        while not all(outcome.ended for outcome in self._outcomes):
            if not self.engine.step():
                time.sleep(0.001)  # a state is being read from disk
            self._deliver()
        check_engine(self.engine)
        return self._outcomes[first:]

    def _deliver(self) -> None:
        if self._worker is None:
            return
        for _ in range(TURNS):
            self._pool.pump()
            self._worker.turn(wait=False)
        self._pool.pump()


def _drafter(drafter: Backend, target: Backend) -> Drafter:
    """Return a drafter, which translates if the target has another vocabulary."""
    if vocabulary_card(drafter.vocab) == vocabulary_card(target.vocab):
        return ModelDrafter(drafter, n_branches=3)
    return TranslatingDrafter(ModelDrafter(drafter), drafter.vocab, target.vocab)


def counts(outcomes: Sequence[Outcome], source: str | None = None) -> tuple[int, int]:
    """Return accepted and drafted tokens of one source, or of all."""
    found = [
        count
        for outcome in outcomes
        for name, count in outcome.finished.stats.drafters.items()
        if source in (None, name)
    ]
    return sum(count.accepted for count in found), sum(count.drafted for count in found)
