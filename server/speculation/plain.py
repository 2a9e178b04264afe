"""What a lead that never drafts asks before a step."""

from __future__ import annotations

from server.engine.proposer import Proposer
from server.speculation.gating.costs import StepCosts


class PlainSteps(Proposer):
    """Guesses nothing and learns nothing. Steps are padded by what was measured at the start."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs

    def padded(self, n_rows: int, n_cells: int) -> int:
        return self._costs.padded(n_rows, n_cells)
