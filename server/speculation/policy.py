"""How a lead speculates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """max_rows: of one decode without prompts; leaves: of one tree; lookup: guess from what was said before;
    gate: verify only guesses that pay, else all that the limits allow; by_rejection: verify whole chains of
    the draft model only (a rule that drops a guess for what it is would bias its replacement); again: after
    a wrong guess all rows of its session are evaluated again (server/engine/checkpoints.py), unless it is one
    of the last n_tail guesses (Backend.n_tail); overlaps: a GPU decodes, and meanwhile there is time to learn
    from the step before."""

    max_rows: int = 64
    leaves: int = 3
    lookup: bool = True
    gate: bool = True
    by_rejection: bool = False
    again: bool = False
    n_tail: int = 0
    overlaps: bool = False
