"""The batch of a step: what is planned for each session, its guesses, and rows for the width only."""

from __future__ import annotations

from collections.abc import Sequence

from server.engine.proposer import Proposal
from server.engine.scheduler import Limits, Work
from server.engine.search import Searches
from server.engine.sequences import NOT_PLACED, Rows, Sequences
from server.llama.backend import Batch


class Builder:
    """Rows for sessions, a place in the KV cache for each."""

    def __init__(
        self, n_ctx: int, n_cells: int, limits: Limits, sequences: Sequences, searches: Searches
    ) -> None:
        self._n_ctx = n_ctx
        self._n_cells = n_cells
        self._limits = limits
        self._sequences = sequences
        self._searches = searches

    def build(
        self, works: Sequence[Work], proposals: Sequence[Proposal], width: int, n_held: int
    ) -> tuple[Batch, list[Rows]]:
        """proposals: one for each work. width: rows that the step shall have, 0 for any; fewer are padded as
        far as there is room. n_held: cells in use."""
        batch, placed = Batch(), list[Rows]()
        batch.fixed = any(self._limits.is_stable(work.session) for work in works)
        n_rows = sum(work.n_rows + len(proposal) for work, proposal in zip(works, proposals, strict=True))
        missing = width - n_rows if n_held + width <= self._n_cells else 0
        for work, proposal in zip(works, proposals, strict=True):
            if work.completes and work.session.request.n_beams > 1:
                self._searches.add(batch, work.session)
                placed.append(NOT_PLACED)
            elif work.completes:
                n_draft, room = len(proposal), self._n_ctx - len(work.session.tokens)
                n_pad = self.n_pad(work, n_draft) or max(0, min(missing, room - n_draft))
                wide = width > len(works)  # else there are no guesses
                placed.append(self._sequences.add(batch, work.session, proposal, n_pad, wide=wide))
                missing -= n_pad
            else:
                self._sequences.add_prompt(batch, work.session, work.n_pending)
                placed.append(NOT_PLACED)
        return batch, placed

    def n_pad(self, work: Work, n_draft: int) -> int:
        """Rows to add so that a step of a stable session has its one width, as far as the context goes."""
        session = work.session
        if session.n_pending > 1 or session.request.n_beams > 1 or not self._limits.is_stable(session):
            return 0
        room = self._n_ctx - len(session.tokens)
        return min(self._limits.stable_width - 1, room) - n_draft
