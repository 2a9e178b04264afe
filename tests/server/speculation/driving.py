"""A speculator that is driven by hand, as the engine drives it."""

from __future__ import annotations

from collections.abc import Sequence

from server.engine.proposer import Ask, CountsBySource, Outcome, Step, StepTiming, Upcoming
from server.speculation.speculator import Speculator
from server.speculation.step import DraftPlan


def take_in(speculator: Speculator, n_active: int = 1) -> DraftPlan:
    """Take in what arrived, in a step that asks nobody."""
    return speculator.plan(Upcoming(n_active))


def ask(
    speculator: Speculator,
    *asks: Ask,
    n_rows: int = 0,
    n_cells: int = 0,
) -> DraftPlan:
    """Return the plan of a step of these sessions, of n_rows rows without guesses if those are more."""
    n, ruled = len(asks), any(one.forced for one in asks)
    return speculator.plan(Upcoming(n, n, n_rows or n, n_cells, ruled, lambda: asks))


def committed(
    speculator: Speculator,
    *sessions: int,
    tally: CountsBySource | None = None,
    timing: StepTiming | None = None,
    plan: DraftPlan | None = None,
) -> None:
    """Tell of a step that committed a token of each of these sessions."""
    outcomes: Sequence[Outcome] = [Outcome(session, 1, tally or {}) for session in sessions]
    speculator.learn(Step(plan or speculator.before, timing, outcomes))
