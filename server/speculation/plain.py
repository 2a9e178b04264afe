"""Proposer for a lead with drafting disabled."""

from __future__ import annotations

from server.engine.proposer import Plan, Proposer, Upcoming
from server.speculation.step_times import StepTimes


class PlainSteps(Proposer):
    """Never guesses or learns; pads a step with rows if a wider decode took less time at the start."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times

    def plan(self, step: Upcoming) -> Plan:
        plan = Plan(asked=False)
        if step.n_rows > 1 and step.may_pad():
            plan.width = self._times.padded(step.n_rows, step.n_cells)
        return plan
