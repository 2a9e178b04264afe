"""KV sequences of a draft model: one per conversation, and some for branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from server.cache.prefix import BusyTokens, PrefixCache


class Cells(Protocol):
    """The methods of Backend that keep and copy cells."""

    @property
    def n_seqs(self) -> int: ...
    @property
    def n_cells(self) -> int: ...
    @property
    def can_trim(self) -> bool: ...

    def length(self, seq: int) -> int: ...
    def intact(self, seq: int, length: int) -> bool: ...
    def trim(self, seq: int, length: int) -> None: ...
    def copy(self, source: int, target: int, start: int, end: int) -> None: ...


class DraftSlots:
    """Slots of a draft model, each with one KV sequence.

    At first, a slot has the sequence with its own number; exchange() swaps the sequences of two slots. The
    last slots are for branches, the others for conversations. A PrefixCache keeps the tokens of idle slots.
    """

    def __init__(self, backend: Cells, n_branches: int = 0) -> None:
        """Divide the backend's sequences into slots for conversations and for branches.

        Args:
            backend: The draft model.
            n_branches: Maximum slots for branches. Branches get at most half of all slots, and none if the
                backend cannot trim sequences.
        """
        n_seqs = backend.n_seqs
        n_branches = min(n_branches, n_seqs // 2) if backend.can_trim else 0
        n_slots = n_seqs - n_branches
        self._backend = backend
        self._cache = PrefixCache(n_slots, partial=backend.can_trim)
        self.seqs = list(range(n_seqs))  # the sequence of each slot, for a batch
        self.unforked = list(range(n_slots, n_seqs))  # free slots for branches
        self.has_branches = n_branches > 0

    def take(
        self, tokens: list[int], salt: str, busy: Mapping[int, BusyTokens] | None = None
    ) -> tuple[int, int] | None:
        """Return a slot for a conversation, and how many of the conversation's first tokens are in the slot.

        Args:
            tokens: The conversation.
            salt: Cells are shared only with conversations of this salt.
            busy: Tokens of busy slots, from which a common beginning can be copied.

        Returns:
            The slot and the number of tokens; None if all slots are busy.
        """
        reuse = self._cache.take(tokens, busy, salt=salt)
        if reuse is None:
            return None
        length = reuse.length if self._backend.intact(self.seqs[reuse.source], reuse.length) else 0
        if reuse.source == reuse.seq:
            return reuse.seq, self.shrink(reuse.seq, length)
        self.shrink(reuse.seq, 0)
        self._copy_cells(reuse.source, reuse.seq, length)
        return reuse.seq, length

    def release(self, slot: int, tokens: list[int], n_kept: int) -> None:
        """Make the slot idle. It keeps the first n_kept of these tokens, or fewer if it cannot be trimmed."""
        self._cache.release(slot, tokens[: self.shrink(slot, n_kept)])

    def limit_idle(self, n_cells: int) -> bool:
        """Evict idle conversations, least valuable first, until all idle ones have at most n_cells cells.

        If n_cells is negative, nothing changes, and the result is False.
        """
        while 0 <= n_cells < self._cache.n_cells:
            evicted = self._cache.evict()
            assert evicted is not None, "cells without an owner"
            self.shrink(evicted.seq, 0)
        return n_cells >= 0

    @property
    def n_idle(self) -> int:
        """Return the number of cells of idle conversations."""
        return self._cache.n_cells

    def fork(self, slot: int, length: int) -> int:
        """Return a slot for a branch, to which the first `length` positions of `slot` have been copied."""
        branch = self.unforked.pop()
        self._copy_cells(slot, branch, length)
        return branch

    def free(self, branch: int) -> None:
        """Free a slot that a branch used."""
        self.shrink(branch, 0)
        self.unforked.append(branch)

    def exchange(self, a: int, b: int) -> None:
        """Swap the sequences of two slots, without copying."""
        self.seqs[a], self.seqs[b] = self.seqs[b], self.seqs[a]

    def shrink(self, slot: int, length: int) -> int:
        """Trim a slot to `length` positions, or to none if sequences cannot be trimmed.

        Returns the number of positions that stay, at most `length`.
        """
        held = self._backend.length(self.seqs[slot])
        if length < held:
            held = length if self._backend.can_trim else 0
            self._backend.trim(self.seqs[slot], held)
        return min(length, held)

    def forget(self, slot: int) -> None:
        """Empty a slot whose content is unknown after a failed decode."""
        self._backend.trim(self.seqs[slot], 0)

    def _copy_cells(self, source: int, target: int, length: int) -> None:
        if length:
            self._backend.copy(self.seqs[source], self.seqs[target], 0, length)
