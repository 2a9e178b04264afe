"""How a lead speculates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """max_rows: of one decode beside prompts; leaves: of one tree; lookup: guess from what was said before;
    gate: verify what pays only, else all that the limits allow; waits: wait for a guess where that pays;
    by_rejection: the draft model's chains only, and all that was drafted, since a rule that drops a guess for
    what it is would bias what replaces it. again: a wrong guess has all rows of its session evaluated again
    (server/engine/checkpoints.py)."""

    max_rows: int = 64
    leaves: int = 3
    lookup: bool = True
    gate: bool = True
    waits: bool = True
    by_rejection: bool = False
    again: bool = False
