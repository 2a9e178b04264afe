"""Manage the KV cache of a model that drafts, in the lead and in drafters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import attrgetter, itemgetter

from server.drafting.branch import NO_SEQ, Branch
from server.drafting.draft_session import DraftSession
from server.drafting.draft_slots import Cells, DraftSlots
from server.llama.backend import Batch
from server.sampling.draft_token import DraftGuess

# Cells reserved for each branch: few branches are assumed to have more guesses. Half: a full cache fails
# sooner
BRANCH_LENGTH = 8
BRANCH_MARGIN = (
    32  # cells left free beside a branch, for paths to grow: assumed. Twice: fewer branches in a full cache
)

_TOKENS = attrgetter("tokens")


class DraftCache:
    """Gives KV sequences to sessions and their branches.

    A session that has a sequence reserves cells for all its tokens. If it outgrows the cache, it loses its
    sequence. The sequence of a closed session stays cached until its cells are needed.
    """

    def __init__(self, backend: Cells, n_branches: int = 0) -> None:
        """Begin empty, with n_branches sequences for branches."""
        self.slots = DraftSlots(backend, n_branches)
        self._n_cells = backend.n_cells
        self.held: dict[int, DraftSession] = {}  # by slot
        self._branches: dict[int, Branch] = {}  # by slot

    def add(self, batch: Batch, session: DraftSession, n: int, n_wanted: int) -> None:
        """Add rows for the session's next n tokens to the batch, with logits for the last n_wanted rows."""
        start = session.n_kv
        session.n_kv = end = start + n
        batch.extend(self.slots.seqs[session.seq], start, session.tokens[start:end], n_wanted)

    def add_branch(self, batch: Batch, branch: Branch) -> None:
        """Add rows for a branch's pending tokens to the batch, with logits for the last row."""
        batch.extend(self.slots.seqs[branch.seq], branch.n_kv, branch.pending, 1)
        branch.n_kv = branch.end

    # -- sessions ----------------------------------------

    def admit(self, session: DraftSession, planned: Iterable[int] = ()) -> bool:
        """Give the session a slot, and cells for all its tokens. May end branches and evict closed sessions.

        Args:
            session: The session whose tokens will be evaluated.
            planned: Slots with rows in this step: their cells cannot be copied before its decode.

        Returns:
            False if there is no room.
        """
        if session.seq != NO_SEQ and self.make_room(0):
            return True
        needed = len(session.tokens) if session.seq == NO_SEQ else 0
        if self._spare_cells(branches=False) < needed:
            self.release(session, keep=True)
            return False
        if self._spare_cells() < needed:
            self.end_branches()
        if session.seq == NO_SEQ:
            evaluated = [other for slot, other in self.held.items() if slot not in planned]
            busy = {other.seq: (other.tokens, other.n_kv) for other in evaluated}
            taken = self.slots.take(session.tokens, session.salt, busy)
            if taken is None:
                return False
            session.seq, session.n_kv = taken
            self.held[session.seq] = session
        assert self.make_room(0), "cells without an owner"
        return True

    def release(self, session: DraftSession, *, keep: bool) -> None:
        """Free the session's slot. If `keep`, its cells stay cached, since the conversation may continue."""
        self.trim(session)
        session.branches = []
        self.free_branches()
        if session.seq == NO_SEQ:
            return
        del self.held[session.seq]
        self.slots.release(session.seq, session.tokens, session.n_kv if keep else 0)
        session.seq, session.n_kv = NO_SEQ, 0

    def trim(self, session: DraftSession) -> None:
        """Remove the cells of wrong guesses from the session's sequence.

        If the lead committed the tokens of a branch, the branch's sequence first becomes the session's.
        """
        if session.taken is not None:
            self.slots.exchange(session.seq, session.taken.seq)
            session.taken = None
        if session.seq != NO_SEQ:
            session.n_kv = self.slots.shrink(session.seq, session.n_kv)

    def make_room(self, n: int) -> bool:
        """Evict closed sessions until n cells are free; return False if that is not enough."""
        return self.slots.limit_idle(self._spare_cells() - n)

    @property
    def n_free(self) -> int:
        """Return the number of cells that are neither reserved nor used by a closed session."""
        return self._spare_cells() - self.slots.n_idle

    def drop(self, slots: Iterable[int]) -> None:
        """Empty slots whose content is unknown after a failed decode; their sessions start over."""
        self.end_branches()
        for slot in slots:
            session = self.held.pop(slot, None)
            self.slots.forget(slot)
            if session is not None:
                self.slots.release(slot, [], 0)
                session.seq, session.n_kv = NO_SEQ, 0

    # -- branches ----------------------------------------

    def begin(self, session: DraftSession, fork: int, second: DraftGuess, gain: float) -> Branch | None:
        """Begin a branch in a free sequence, else in the sequence of a less likely branch.

        The less likely branch keeps its guesses, but gets no further ones.

        Args:
            session: The session.
            fork: Number of the session's tokens before the branch.
            second: The branch's first guess.
            gain: Probability that the lead takes the branch.

        Returns:
            The branch; None if there is no room.
        """
        if session.seq == NO_SEQ:
            return None
        if not self.slots.unforked:
            held = [(s.score_of(b), b) for s in self.held.values() for b in s.branches if b.seq != NO_SEQ]
            least, other = min(held, key=itemgetter(0), default=(math.inf, None))
            if other is None or least >= gain:
                return None
            self._free_branch(other.seq)
            other.seq, other.n_kv = NO_SEQ, other.fork
        if not self.make_room(BRANCH_LENGTH + BRANCH_MARGIN):
            return None
        branch = session.branch(fork, second)
        branch.seq = self.slots.fork(session.seq, fork)
        self._branches[branch.seq] = branch
        return branch

    def free_branches(self) -> None:
        """Free the slots of branches that no longer belong to a session."""
        alive = {id(branch) for session in self.held.values() for branch in session.all_branches}
        for slot in [slot for slot, branch in self._branches.items() if id(branch) not in alive]:
            self._free_branch(slot)

    def end_branches(self) -> None:
        """End all branches."""
        for session in self.held.values():
            session.branches = []
        self.free_branches()

    def _free_branch(self, slot: int) -> None:
        self.slots.free(slot)
        del self._branches[slot]

    def _spare_cells(self, *, branches: bool = True) -> int:
        """Return the number of cells that sessions (and, if `branches`, branches) have not reserved."""
        spare = self._n_cells - sum(map(len, map(_TOKENS, self.held.values())))
        return spare - BRANCH_LENGTH * len(self._branches) if branches and self._branches else spare
