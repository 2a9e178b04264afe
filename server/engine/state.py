"""State that admission, drafting, commits and endings share: sessions, backend, proposer and caches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from server.engine.events import Event
from server.engine.proposer import Proposer
from server.engine.residence import Residence
from server.engine.scheduler import Limits
from server.engine.search import Searches
from server.engine.sequences import Sequences
from server.engine.session import Session
from server.engine.slot_numbers import SlotNumbers
from server.llama.backend import Backend
from server.tenants import Turns


class EngineState:
    """Sessions, backend, proposer, cache and limits of one engine."""

    def __init__(
        self,
        backend: Backend,
        proposer: Proposer,
        emit: Callable[[int, Event], None],
        n_slots: int,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self.backend = backend
        self.proposer = proposer
        self.emit = emit  # called with (session id, event); must not block
        self.n_slots = n_slots
        self.clock = clock  # seconds
        self.active: list[Session] = []  # sessions with a KV sequence, in order of admission
        self.waiting: deque[Session] = deque()  # sessions without one, in order of arrival
        self.turns = Turns()  # which tenant is next
        self.sequences = Sequences(backend, n_slots, limits.leaves)
        if not backend.can_trim:
            most = limits.draft_max if self.sequences.checkpoints.can_guess else backend.n_tail
            draft_max = min(limits.draft_max, most)
            limits = replace(limits, draft_max=draft_max, leaves=1, stable_width=1, again=True)
        self.limits = replace(limits, streams=not backend.can_share)
        self.slot_numbers = SlotNumbers(n_slots)
        self.searches = Searches(backend, self.sequences, n_slots)
        self.residence = Residence(backend, self.sequences, self.n_used)
        self.cache = self.residence.cache

    @property
    def sessions(self) -> list[Session]:
        return [*self.active, *self.waiting]

    def n_used(self) -> int:
        """Return the number of KV cells in use."""
        return self.cache.n_cells + sum([session.n_kv + session.n_extra for session in self.active])
