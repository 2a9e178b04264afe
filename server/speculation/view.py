"""The planner's input for a step: what rows cost, and the available guesses. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from server.engine.proposer import NOTHING, Ask, Proposal
from server.speculation.policy import Policy
from server.speculation.shape_times import NextShape
from server.speculation.speculated import Speculated
from server.speculation.step import NOBODY, Drafting, Guessers
from server.speculation.step_times import StepTimes


@dataclass(slots=True)
class View:
    """Input of the planner for one step: guesses of sessions, hit rates, cost of rows, and pauses."""

    policy: Policy
    asks: Sequence[Ask]
    sessions: Sequence[Speculated]  # one for each ask
    times: StepTimes
    n_rows: int  # rows without guesses
    seconds: Sequence[float]  # by rows of the step, with what a change of width costs later steps
    undrafted_s: float  # seconds of the step without guesses and padding
    rate: float  # price of time, in tokens per second (see gain.py)
    guess_s: float = 0.0  # Python seconds of a verified guess outside the decode
    change_s: float = 0.0  # extra seconds of a change to the step's width and back (ShapeTimes.charge_s)
    guessers: Guessers = NOBODY
    shape: NextShape | None = None  # None: the step cannot be padded to one of a few widths
    is_stable: bool = False  # the step's one session is width-stable, so guesses are free
    on_trial: Collection[str] = ()  # drafters of which a guess must be verified
    drafting: Drafting | None = None

    @property
    def n_sessions(self) -> int:
        return len(self.asks)

    @property
    def undrafted_rate(self) -> float:
        """Return the tokens per second of undrafted steps; 0 if unknown."""
        return self.n_sessions / self.undrafted_s if self.undrafted_s else 0.0

    @property
    def overhead(self) -> float:
        """Return the cost of a verified guess's Python time: the tokens that could be made in that time."""
        return self.rate * self.guess_s

    def guess_cost(self, n: int) -> float:
        """Return the cost of one guess if n are verified: tokens that undrafted steps make in its time."""
        undrafted_s = self.undrafted_s
        later_s = self.change_s + self.seconds[min(self.n_rows + n, len(self.seconds) - 1)] - undrafted_s
        return self.n_sessions * max(0.0, later_s) / (undrafted_s * max(1, n)) if undrafted_s else 0.0

    def again_cost(self) -> float:
        """Return the cost of evaluating one row again: tokens that undrafted steps make in that time."""
        single_s = self.seconds[min(self.n_sessions, len(self.seconds) - 1)]
        n_more = self.n_rows - self.n_sessions
        if not (single_s and n_more):
            return 0.0
        return self.n_sessions * max(0.0, self.undrafted_s - single_s) / (single_s * n_more)


def offer(view: View, i: int) -> Proposal:
    """Return the i-th session's guesses that may be verified within its limits, best first."""
    ask, speculated = view.asks[i], view.sessions[i]
    tree = speculated.tree
    if not tree.n_below:
        return NOTHING
    bounds = speculated.session.bounds
    sources = None if bounds.drafters is None else speculated.allows
    leaves = 1 if bounds.exactness == "width-stable" else view.policy.leaves
    return tree.offer(
        speculated.hits,
        ask.limit,
        leaves=leaves,
        p_min=bounds.p_min,
        allows_source=sources,
        allows=ask.allows,
    )
