"""The places for conversations in the KV cache, one by one: listed, saved, restored and erased by hand.

A slot is busy with a session, or idle, perhaps with a conversation. Only idle ones can be acted on. For the
engine's thread, between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.cache.prefix import Evicted
from server.engine.residence import Residence
from server.engine.scheduler import Limits
from server.engine.session import Session
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

    def __init__(self, residence: Residence, active: Sequence[Session], limits: Limits) -> None:
        """active: the engine's list of sessions that have a sequence."""
        self._residence = residence
        self._active = active
        self._limits = limits

    def list(self) -> list[Slot]:
        running = {session.seq: session for session in self._active}
        resting = self._residence.resting()
        return [self._slot(id, running.get(id), resting.get(id)) for id in range(self._residence.n_places)]

    def save(self, id: int, salt: str = "") -> tuple[list[int], bytes]:
        """The tokens that a slot holds, and their state, for the salt of its conversation only. Raises
        NotFoundError, SlotBusyError, InvalidRequestError, BackendError."""
        held = self._idle(id)
        if not held.tokens:
            raise InvalidRequestError(f"slot {id} is empty: there is nothing to save")
        if held.salt != salt:
            raise InvalidRequestError(f"slot {id} holds a conversation of another salt: it is not for others")
        return list(held.tokens), self._residence.state(id)

    def restore(self, id: int, tokens: list[int], data: bytes, salt: str = "") -> None:
        """Have a slot hold what save() gave, for prompts of this salt. What it held is evicted. Raises
        NotFoundError, SlotBusyError, InvalidRequestError."""
        self._idle(id)
        if len(tokens) > self._residence.n_ctx:
            raise InvalidRequestError(
                f"the saved conversation has {len(tokens)} tokens, the context {self._residence.n_ctx}"
            )
        if any(self._limits.is_stable(session) for session in self._active):
            raise SlotBusyError(
                "a width-stable reply needs the KV cache for itself: try again when it has ended"
            )
        if not self._residence.fits(len(tokens)):
            raise SlotBusyError(
                f"the running replies leave no {len(tokens)} cells of the KV cache: try again later"
            )
        try:
            self._residence.restore(id, tokens, data, salt)
        except BackendError as error:
            raise InvalidRequestError(f"the saved conversation cannot be used: {error.message}") from error

    def erase(self, id: int) -> int:
        """Empty a slot. Returns the number of tokens that it held. Raises NotFoundError, SlotBusyError."""
        n_erased = len(self._idle(id).tokens)
        self._residence.erase(id)
        return n_erased

    def _idle(self, id: int) -> Evicted:
        """What an idle slot holds. Raises NotFoundError, SlotBusyError."""
        if not 0 <= id < self._residence.n_places:
            raise NotFoundError(
                f"there is no slot {id}: they are 0 to {self._residence.n_places - 1}", param="id"
            )
        held = self._residence.resting().get(id)
        if held is None:
            raise SlotBusyError(f"slot {id} is busy: try again when its reply has ended")
        return held

    def _slot(self, id: int, session: Session | None, held: Evicted | None) -> Slot:
        if session is not None:
            n_past, n_prompt = session.n_kv, session.n_prompt
            return Slot(id, True, session.drafts, n_past, session.id, n_prompt, session.n_generated)
        drafts = self._limits.draft_max > 0
        return Slot(id, True, False) if held is None else Slot(id, False, drafts, len(held.tokens))
