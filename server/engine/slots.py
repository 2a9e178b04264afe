"""The places for conversations in the KV cache, one by one: listed, saved, restored and erased by hand.

A slot is busy with a session, or idle, perhaps with a conversation. Only idle ones can be acted on. For the
engine's thread, between steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.cache.prefix import Evicted
from server.engine.session import Session
from server.engine.state import EngineState
from server.errors import BackendError, InvalidRequestError, NotFoundError


class SlotBusyError(InvalidRequestError):
    """Something that runs is in the way (409)."""

    status = 409


@dataclass(frozen=True, slots=True)
class Slot:
    """n_past: tokens in the KV cache. session, n_prompt, n_decoded: of the session that has it; a busy slot
    without one is lent to a beam search. speculative: whether drafts may be verified here."""

    id: int
    busy: bool
    speculative: bool
    n_past: int = 0
    session: int | None = None
    n_prompt: int = 0
    n_decoded: int = 0


class Slots:
    """The sequences for conversations as slots; ids count from 0."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def list(self) -> list[Slot]:
        running = {session.seq: session for session in self._state.active}
        resting, n_slots = self._state.cache.resting(), self._state.sequences.n_main
        return [self._slot(id, running.get(id), resting.get(id)) for id in range(n_slots)]

    def save(self, id: int, salt: str = "") -> tuple[list[int], bytes]:
        """The tokens that a slot holds, and their state, for the salt of its conversation only. Raises
        NotFoundError, SlotBusyError, InvalidRequestError, BackendError."""
        held = self._idle(id)
        if not held.tokens:
            raise InvalidRequestError(f"slot {id} is empty: there is nothing to save")
        if held.salt != salt:
            raise InvalidRequestError(f"slot {id} holds a conversation of another salt: it is not for others")
        return list(held.tokens), self._state.backend.save(id)

    def restore(self, id: int, tokens: list[int], data: bytes, salt: str = "") -> None:
        """Have a slot hold what save() gave, for prompts of this salt. What it held is evicted. Raises
        NotFoundError, SlotBusyError, InvalidRequestError."""
        self._idle(id)
        state = self._state
        n_ctx, n_busy = state.backend.n_ctx, state.n_held() - state.cache.n_cells
        if len(tokens) > n_ctx:
            raise InvalidRequestError(f"the saved conversation has {len(tokens)} tokens, the context {n_ctx}")
        if any(state.limits.is_stable(session) for session in state.active):
            raise SlotBusyError(
                "a width-stable reply needs the KV cache for itself: try again when it has ended"
            )
        if n_busy + len(tokens) > state.backend.n_cells:
            raise SlotBusyError(
                f"the running replies leave no {len(tokens)} cells of the KV cache: try again later"
            )
        try:
            state.residence.restore(id, tokens, data, salt)
        except BackendError as error:
            raise InvalidRequestError(f"the saved conversation cannot be used: {error.message}") from error

    def erase(self, id: int) -> int:
        """Empty a slot. Returns the number of tokens that it held. Raises NotFoundError, SlotBusyError."""
        n_erased = len(self._idle(id).tokens)
        self._state.residence.erase(id)
        return n_erased

    def _idle(self, id: int) -> Evicted:
        """What an idle slot holds. Raises NotFoundError, SlotBusyError."""
        n_slots = self._state.sequences.n_main
        if not 0 <= id < n_slots:
            raise NotFoundError(f"there is no slot {id}: they are 0 to {n_slots - 1}", param="id")
        held = self._state.cache.resting().get(id)
        if held is None:
            raise SlotBusyError(f"slot {id} is busy: try again when its reply has ended")
        return held

    def _slot(self, id: int, session: Session | None, held: Evicted | None) -> Slot:
        if session is not None:
            n_past, n_prompt = session.n_kv, session.n_prompt
            return Slot(id, True, session.drafts, n_past, session.id, n_prompt, session.n_generated)
        drafts = self._state.limits.draft_max > 0
        return Slot(id, True, False) if held is None else Slot(id, False, drafts, len(held.tokens))
