"""List the engine's slots, and save, restore and erase their conversations for clients.

A slot is busy with a session, or idle and may hold a conversation. Only idle slots can be changed. Used on
the engine's thread, between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.cache.prefix import Evicted
from server.engine.request import GenerationRequest
from server.engine.session import NO_SEQ, Session
from server.engine.state import EngineState
from server.errors import BackendError, InvalidRequestError, NotFoundError


class SlotBusyError(InvalidRequestError):
    """The slot is busy with a reply (409)."""

    status = 409


@dataclass(frozen=True, slots=True)
class SlotTask:
    """The latest reply in a slot, which may still run."""

    id: int  # id of its session
    request: GenerationRequest
    n_cached: int  # tokens of its prompt that were in the KV cache
    n_evaluated: int  # tokens of its prompt that were evaluated for it
    n_decoded: int
    n_remaining: int  # tokens that may still follow; -1: no limit
    generated: Sequence[int]  # tokens of the reply


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot, which generates one reply at a time."""

    id: int
    busy: bool
    speculative: bool  # drafts may be verified here
    n_past: int = 0  # tokens in the KV cache
    task: SlotTask | None = None  # None before the first reply


class Slots:
    """The engine's slots; ids count from 0."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def list(self) -> list[Slot]:
        """Return all slots."""
        running = {session.seq: session for session in self._state.active}
        idle_contents = self._state.cache.idle_contents()
        numbers = self._state.slot_numbers
        return [
            self._slot_of(id, running.get(numbers.seq(id)), idle_contents.get(numbers.seq(id)))
            for id in range(len(numbers))
        ]

    def save(self, id: int, salt: str = "") -> tuple[list[int], bytes]:
        """Return the tokens that an idle slot holds (none if it is empty), and their state.

        Args:
            id: Id of the slot.
            salt: Salt of the conversation; a conversation with another salt is refused.

        Raises:
            NotFoundError, SlotBusyError, InvalidRequestError, BackendError.
        """
        held = self._idle_slot(id)
        if not held.tokens:
            return [], b""
        if held.salt != salt:
            raise InvalidRequestError(f"slot {id} holds a conversation of another API key or cache_salt")
        return list(held.tokens), self._state.backend.save(self._state.slot_numbers.seq(id))

    def restore(self, id: int, tokens: list[int], data: bytes, salt: str = "") -> None:
        """Load what save() returned into an idle slot, and evict the slot's conversation.

        Only prompts of this salt can continue it. Raises NotFoundError, SlotBusyError, InvalidRequestError.
        """
        self._idle_slot(id)
        state, seq = self._state, self._state.slot_numbers.seq(id)
        if not tokens:
            state.residence.erase(seq)
            return
        n_ctx, n_busy = state.backend.n_ctx, state.n_used() - state.cache.n_cells
        if len(tokens) > n_ctx:
            raise InvalidRequestError(
                f"the saved conversation has {len(tokens)} tokens, more than the context of {n_ctx}"
            )
        if any(state.limits.is_stable(session) for session in state.active):
            raise SlotBusyError(
                "a width-stable reply needs the KV cache for itself: try again when it has ended"
            )
        if n_busy + len(tokens) > state.backend.n_cells:
            raise SlotBusyError(
                f"the running replies leave no {len(tokens)} cells of the KV cache: try again later"
            )
        try:
            state.residence.restore(seq, tokens, data, salt)
        except BackendError as error:
            raise InvalidRequestError(f"the saved conversation cannot be used: {error.message}") from error

    def erase(self, id: int) -> int:
        """Empty a slot, and return the number of its tokens. Raises NotFoundError, SlotBusyError."""
        n_erased = len(self._idle_slot(id).tokens)
        self._state.residence.erase(self._state.slot_numbers.seq(id))
        return n_erased

    def _idle_slot(self, id: int) -> Evicted:
        """Return the conversation of an idle slot. Raises NotFoundError, SlotBusyError."""
        n_slots = len(self._state.slot_numbers)
        if not 0 <= id < n_slots:
            raise NotFoundError(f"there is no slot {id}: slots are numbered 0 to {n_slots - 1}", param="id")
        held = self._state.cache.idle_contents().get(self._state.slot_numbers.seq(id))
        if held is None:
            raise SlotBusyError(f"slot {id} is busy: try again when its reply has ended")
        return held

    def _slot_of(self, id: int, session: Session | None, held: Evicted | None) -> Slot:
        task = _task_of(latest) if (latest := self._state.slot_numbers.latest(id)) else None
        if session is not None:
            return Slot(id, True, session.drafts, session.n_kv, task)
        drafts = self._state.limits.draft_max > 0
        if held is None:  # a beam search uses it
            return Slot(id, True, False, task=task)
        return Slot(id, False, drafts, len(held.tokens), task)


def _task_of(session: Session) -> SlotTask:
    request = session.request
    n_read = session.n_prompt if session.seq == NO_SEQ else min(session.n_kv, session.n_prompt)
    n_evaluated = max(0, n_read - session.n_cached)
    n_left = -1 if request.max_tokens is None else max(0, request.max_tokens - session.n_generated)
    generated = session.tokens[session.n_prompt :]
    return SlotTask(
        session.id, request, session.n_cached, n_evaluated, session.n_generated, n_left, generated
    )
