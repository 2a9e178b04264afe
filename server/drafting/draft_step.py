"""One decode of a draft model, which a GPU may run while the drafter handles earlier guesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from server.drafting.branch import Branch
from server.drafting.draft_session import DraftSession
from server.llama.backend import Batch, Logits

PAD = 0  # the token of padding rows

Grown: TypeAlias = tuple[DraftSession, Branch | None]
"""Owner of a row of logits, which gives its next guess: a branch of the session, or its path (None)."""


class DraftStep:
    """The rows of one decode, and the paths and branches that get guesses from it."""

    def __init__(self, begun: float = 0.0) -> None:
        """Begin without rows, the previous logits having arrived at `begun`, in seconds."""
        self.begun = begun
        self.batch = Batch()
        # in order of rows; paths first, unless rows are in the order of their sequences
        self.grown: list[Grown] = []
        self.places: list[int] = []  # by place in `grown`: row of the logits
        self.slots: set[int] = set()  # slots with rows
        self.behind: set[int] = set()  # slots with more to evaluate than the last guess
        self.n_paths = 0  # number of paths in `grown`
        self.is_timed = True  # no other decode was planned in its time
        self.pads: Sequence[tuple[int, int]] = ()  # sequences and positions of padding rows
        # of a decode that was started before messages were handled: waits for the logits and returns them
        self.logits: Callable[[], Logits] | None = None

    def add_grown(self, session: DraftSession, branch: Branch | None) -> None:
        """Note that the latest row with logits gives the next guess of a branch (None: of the path)."""
        self.grown.append((session, branch))
        self.places.append(sum(self.batch.wanted) - 1)

    def pad(self, pads: Sequence[tuple[int, int]]) -> None:
        """Add a padding row at each of these pairs of sequence and position, and order all rows by sequence.

        Every sequence must have one row, with logits. Decodes whose rows have the same sequences in the same
        order can then share a recorded GPU graph.
        """
        batch, self.pads = self.batch, pads
        for seq, position in pads:
            batch.extend(seq, position, [PAD], 1)
        order = sorted(range(len(batch)), key=batch.seqs.__getitem__)
        for values in (batch.tokens, batch.positions, batch.seqs):
            values[:] = [values[i] for i in order]
        self.places = [order.index(place) for place in self.places]

    def drop_stale(self) -> None:
        """Drop the paths and branches of `grown` whose rows are useless after the lead's latest messages.

        The row of a branch that was taken now belongs to the path.
        """
        kept = [self._owner(*one) for one in self.grown]
        self.places = [place for place, owner in zip(self.places, kept, strict=True) if owner]
        self.grown = [owner for owner in kept if owner]
        self.n_paths = sum(branch is None for _, branch in self.grown)

    def _owner(self, session: DraftSession, branch: Branch | None) -> Grown | None:
        if branch is session.taken:  # for a path: nothing was taken
            return None if session.pending else (session, None)
        return (session, branch) if any(branch is one for one in session.branches) else None

    def discard(self) -> None:
        """Discard a started decode: its tokens will be evaluated again."""
        for session, branch in self.grown:
            if branch is None or branch is session.taken:
                session.n_kv = min(session.n_kv, len(session.tokens) - 1)
            else:
                session.branches = []
            session.has_news = True
