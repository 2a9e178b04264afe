"""Build the batch of a step: rows of each session, guesses, and padding."""

from __future__ import annotations

from collections.abc import Sequence

from server.engine.proposer import Plan
from server.engine.scheduler import Limits, Work
from server.engine.sequences import NO_LAYOUT, RowLayout
from server.engine.state import EngineState
from server.llama.backend import Batch


def build(
    state: EngineState, works: Sequence[Work], plan: Plan, n_used: int
) -> tuple[Batch, list[RowLayout]]:
    """Return the batch, and the layout of each work's rows in it.

    Args:
        state: The sessions, and what they run on.
        works: The step's work, one for each of its sessions; the guesses are in `plan`.
        plan: One proposal for each work, and the width to pad the step to if there is room.
        n_used: Number of KV cells in use.
    """
    batch, n_ctx, missing = Batch(), state.backend.n_ctx, 0
    layouts: list[RowLayout] = []
    if plan.width and n_used + plan.width <= state.backend.n_cells:
        missing = plan.width - sum([work.n_rows for work in works]) - sum(map(len, plan.proposals))
    batch.stable = len(works) == 1 and state.limits.is_stable(works[0].session)  # it runs alone
    for work, proposal in zip(works, plan.proposals, strict=True):
        layout, session = NO_LAYOUT, work.session
        if not work.completes:
            state.sequences.add_prompt(batch, session, work.n_pending)
        elif session.request.n_beams > 1:
            state.searches.add(batch, session)
        else:
            n_draft, room = len(proposal.tokens), n_ctx - len(session.tokens)
            padding = n_pad(state.limits, n_ctx, work, n_draft) if batch.stable else 0
            if missing > 0 and not padding:
                padding = max(0, min(missing, room - n_draft))
            wide = (
                plan.is_shape and len(works) == 1
            )  # with several sessions, the rows' sequences differ from step to step anyway
            layout = state.sequences.add(batch, session, proposal, padding, wide=wide)
            missing -= padding
        layouts.append(layout)
    return batch, layouts


def n_pad(limits: Limits, n_ctx: int, work: Work, n_draft: int) -> int:
    """Return the number of padding rows for a step of a width-stable session with n_draft guesses.

    All steps of such a session have the same number of rows, so that its logits do not depend on guesses.
    Only steps near the end of the context have fewer rows. Prompts and beam searches are not padded.
    """
    session = work.session
    if (session.n_pending > 1 and not session.strides) or session.request.n_beams > 1:
        return 0
    return min(limits.stable_width - session.n_pending, n_ctx - len(session.tokens)) - n_draft
