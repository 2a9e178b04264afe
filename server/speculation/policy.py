"""Settings of how a lead speculates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of a lead's speculation."""

    max_rows: int = 64  # maximum rows of one decode without prompts
    leaves: int = 3  # maximum leaves of one tree of guesses
    lookup: bool = True  # guess from earlier text
    gate: bool = True  # verify only guesses that pay; False: all within the limits
    # verify only whole chains of the draft model: dropping a guess because of its token would bias the text
    by_rejection: bool = False
    # a wrong guess makes all rows of its session be evaluated again (server/engine/checkpoints.py)
    again: bool = False
    n_tail: int = 0  # with `again`: number of last rows that can be removed instead (Backend.n_tail)
    overlaps: bool = False  # a GPU decodes, so learning from the last step can happen meanwhile
