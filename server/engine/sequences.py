"""Lay out sessions' rows in the sequences of the KV cache.

A session has one sequence, for its tokens and one leaf of its tree of guesses. Each further leaf needs a
sequence of its own, called a shadow. A shadow shares the cells of the session's sequence, so it needs cells
only for guesses. Before a step, only the positions that a shadow lacks are copied to it. Conversations that
begin with equal tokens share cells too. If sequences cannot be trimmed, there are checkpoints instead of
shadows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from server.cache.prefix import ONE_STEP, Reuse
from server.engine.branches import MAIN, Branches, branches
from server.engine.checkpoints import Checkpoints
from server.engine.proposer import Proposal
from server.engine.session import Session
from server.llama.backend import PAD, Backend, Batch


class RowLayout(NamedTuple):
    """Layout of one session's rows in the batch."""

    tree: Branches | None  # leaves of its proposal; None if only the session's own sequence got rows
    n_rows: int  # rows after the pending tokens
    n_pad: int  # how many of these rows are padding
    n_shadows: int  # number of shadows that also got the pending tokens


NO_LAYOUT = RowLayout(None, 0, 0, 0)


class Sequences:
    """The backend's sequences: the first n_main hold conversations, the others are shadows or checkpoints.

    A shadow shares the cells of its conversation, and adds those of a further leaf of the tree of guesses. A
    checkpoint keeps an earlier state.
    """

    def __init__(self, backend: Backend, n_slots: int, leaves: int) -> None:
        """Divide the backend's sequences among slots.

        A tree of guesses with `leaves` leaves needs as many sequences per slot. A backend that can copy but
        not trim sequences also needs sequences for checkpoints: one per slot for the state before guesses,
        and one per slot for the state near the end of a prompt.
        """
        self._backend = backend
        branching = backend.can_trim and backend.can_share and backend.n_seqs >= n_slots * leaves
        self._n_shadows = leaves - 1 if branching else 0
        checks = backend.can_copy and not backend.can_trim
        n_spare = max(0, min(2, backend.n_seqs // n_slots - 1)) if checks else 0
        self.n_main = backend.n_seqs // (1 + self._n_shadows + n_spare)
        self.checkpoints = Checkpoints(backend, self.n_main, n_spare)
        self._shared = [0] * self.n_main  # leading cells of each conversation that others may share
        for seq in range(backend.n_seqs):
            backend.trim(seq, 0)

    @property
    def most_leaves(self) -> int:
        """Return the maximum number of leaves of a session's tree."""
        return 1 + self._n_shadows

    def take(self, reuse: Reuse) -> int:
        """Make the sequence `reuse.seq` hold exactly the tokens to reuse, and return their number.

        The number is 0 if their cells are not intact (Backend.intact), or if they are too few to copy.
        """
        length = reuse.length if self._backend.intact(reuse.source, reuse.length) else 0
        if reuse.source == reuse.seq:
            self.trim(reuse.seq, length)
            return length
        if not self._backend.can_share and length < ONE_STEP:  # copying would move all of the source
            length = 0
        self.trim(reuse.seq, 0)
        if length:
            self.checkpoints.copy(reuse.source, reuse.seq, length)
            self._shared[reuse.seq] = length
            self._shared[reuse.source] = max(self._shared[reuse.source], length)
        return length

    def add_prompt(self, batch: Batch, session: Session, n: int) -> None:
        """Add rows for the next n tokens of a prompt, with logits only if its logprobs are reported."""
        rows = session.tokens[session.n_kv : session.n_kv + n]
        batch.extend(session.seq, session.n_kv, rows, n if session.reports_prompt else 0)

    def add(
        self, batch: Batch, session: Session, proposal: Proposal, n_pad: int, *, wide: bool = False
    ) -> RowLayout:
        """Add a session's rows: pending tokens, with logits for the last one, then guesses and padding.

        Args:
            batch: The batch of the step.
            session: The session.
            proposal: Its guesses.
            n_pad: Number of padding rows.
            wide: True: give rows to all shadow sequences, so that all steps with this number of rows can
                share a recorded GPU graph.
        """
        rows, n = session.tokens[session.n_kv :], len(proposal.tokens)
        if len(rows) == 1 and not (n or n_pad or wide):
            batch.append((session.seq,), session.n_kv, rows[0], wanted=True)
            return NO_LAYOUT
        if not self._can_take_back(n + n_pad):
            self.checkpoints.save_step(session.seq)
        if proposal.parents == tuple(range(-1, n - 1)) and not (wide and self._n_shadows):
            n_reported = len(rows) if session.reports_prompt else 1
            tokens = [*rows, *proposal.tokens, *[PAD] * n_pad]
            batch.extend(session.seq, session.n_kv, tokens, n_reported + n + n_pad)
            return RowLayout(None, n + n_pad, n_pad, 0)
        tree = branches(proposal.parents)
        assert tree.n_leaves <= self.most_leaves, f"{tree.n_leaves} leaves"
        n_shadows = self._n_shadows if wide else tree.n_leaves - 1
        seqs = (session.seq, *self._shadows_of(session.seq)[:n_shadows])
        for shadow in seqs[1:]:
            if (start := self._backend.length(shadow)) < session.n_kv:
                self._backend.copy(session.seq, shadow, start, session.n_kv)
        for i, token in enumerate(rows):
            batch.append(seqs, session.n_kv + i, token, wanted=i == len(rows) - 1)
        base = len(session.tokens)
        of_leaves = {below: tuple([seqs[leaf] for leaf in below]) for below in set(tree.below)}
        for token, depth, below in zip(proposal.tokens, tree.depths, tree.below, strict=True):
            batch.append(of_leaves[below], base + depth, token, wanted=True)
        batch.extend(session.seq, base + tree.n_main, [PAD] * n_pad, n_pad)
        return RowLayout(tree, n + n_pad, n_pad, n_shadows)

    def keep_accepted(self, session: Session, layout: RowLayout, nodes: Sequence[int]) -> None:
        """Keep only the pending tokens and the accepted `nodes` of the proposal in the sequence.

        If the other rows cannot be removed, the state from before the step is restored, and the tokens that
        should stay are evaluated again. Sets session.n_again and session.n_kv. At the call, session.n_kv must
        have its value from before the step.
        """
        if not self._can_take_back(layout.n_rows - len(nodes)):
            self.checkpoints.restore_step(session.seq, session.n_kv)
            session.n_again = session.n_pending + len(nodes)
            return
        base = len(session.tokens)
        session.n_kv, session.n_again = base + len(nodes), 0
        tree = layout.tree
        if tree is None:
            self._backend.trim(session.seq, session.n_kv)
            return
        main = sum(MAIN in tree.below[node] for node in nodes)
        if layout.n_pad or main < tree.n_main:
            self._backend.trim(session.seq, base + main)
        shadows = self._shadows_of(session.seq)
        if main < len(nodes):
            winner = shadows[tree.below[nodes[-1]][0] - 1]
            self._backend.copy(winner, session.seq, base + main, session.n_kv)
        for shadow in shadows[: max(0, tree.n_leaves - 1)]:  # further ones got only the pending tokens
            self._backend.trim(shadow, base)

    def _can_take_back(self, n_rows: int) -> bool:
        """Return True if the last n_rows rows of a step can be removed from their sequence."""
        return self._backend.can_trim or n_rows <= self._backend.n_tail

    def trim(self, seq: int, length: int) -> None:
        """Remove positions >= length from a session's sequence, and empty its shadows.

        Where sequences cannot be trimmed, `length` must be 0, the sequence's own length, or that of its turn
        checkpoint.
        """
        self.checkpoints.trim(seq, length)
        self._shared[seq] = min(self._shared[seq], length)
        self._free_shadows(seq)

    def owns(self, seq: int, start: int) -> bool:
        """Return True if no other conversation can share cells of `seq` at positions >= start."""
        return self._shared[seq] <= start

    def shift(self, seq: int, start: int, end: int) -> None:
        """Remove positions start to end, and move later cells to `start`. `seq` must own the moved cells."""
        self._free_shadows(seq)
        self._backend.shift(seq, start, end)
        self._shared[seq] = min(self._shared[seq], start)

    def claim(self, seq: int) -> list[int]:
        """Return a conversation's sequence and its shadows, for any use until trim() is called."""
        return [seq, *self._shadows_of(seq)]

    def _free_shadows(self, seq: int) -> None:
        for shadow in self._shadows_of(seq):
            self._backend.trim(shadow, 0)

    def _shadows_of(self, seq: int) -> range:
        first = self.n_main + seq * self._n_shadows
        return range(first, first + self._n_shadows)
