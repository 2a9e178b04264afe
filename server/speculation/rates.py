"""Measure the lead's tokens per second, and its Python time outside decodes. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from copy import deepcopy
from typing import Literal, TypeAlias

from server.engine.proposer import StepTiming
from server.estimators import Median, Ratio, Slope
from server.speculation.step import DraftPlan
from server.speculation.step_times import LATEST, StepTimes

# Weight of the past, per step, in the tokens per second: about the last 20 steps count. With 10 they follow
# single lucky steps; with 40 they lag a change of text by 40 steps.
KEEP_RATE = 0.95
# Weight of the past, per step, in a guess's Python time: about the last 100 steps count. If steps scatter by
# as much as a guess takes, its time is known to a tenth; with half of the steps to a seventh; with twice, a
# change shows after 200 steps. The time counts only after LATEST steps, since one slow step would bar
# guesses.
KEEP_GUESS = 0.99
# Limit of a step's times, as a multiple of the usual time: a process's first steps take up to 40 times as
# long. More time outside the decode is cut; a longer decode is not charged to guesses. Half: guesses look
# cheaper than they are; twice: one interruption looks like a tenth of a guess's cost for 100 steps.
STEP_OUTLIER = 4.0
# Minimum steps of a kind until their time counts: a process's first steps take up to ten times as long. Half:
# one such step counts whole; twice: a bad drafter costs ten steps more.
KNOWN = LATEST // 3
# Assumed cost of a drafter's messages, as a share of an undrafted step: what they took on an H100 with a
# drafter on its host's CPU (0.2 to 0.3 of 4.4 ms). With 0.02, 16 cases of benchmarks.clocked are 0.4 percent
# slower, 24 others 0.2 percent faster; at 0, a drafter that is never right is not paused.
ASSUMED = 0.05

StepKindOfPython: TypeAlias = Literal["any", "passed", "quiet", "told", "guessing"]
"""Kinds of steps by Python time.

any: every step.
passed: no source was asked.
quiet: nobody guessed, and no drafter had a session.
told: drafters had sessions.
guessing: guesses were verified.
"""


class PythonTimes:
    """Seconds per session that a step takes outside its decode, by kind of step and number of sessions."""

    def __init__(self) -> None:
        self._medians = defaultdict[tuple[StepKindOfPython, int], Median](lambda: Median(LATEST))
        # seconds that a session's drafters took in the latest step, by whether guesses were verified; None:
        # unknown
        self._drafters_s: dict[bool, float | None] = {False: None, True: None}

    def observe(self, kind: StepKindOfPython, n_sessions: int, outside_s: float) -> None:
        """Learn from a step of n_sessions sessions with outside_s seconds outside its decode."""
        self._medians[kind, n_sessions.bit_length()].observe(outside_s / n_sessions)

    def more_s(self, kind: StepKindOfPython, base: StepKindOfPython, n_sessions: int) -> float | None:
        """Return the extra seconds per session of one kind of step over another; None until known."""
        bits = n_sessions.bit_length()
        one, other = self._medians[kind, bits], self._medians[base, bits]
        return max(0.0, one.value - other.value) if min(one.count, other.count) >= KNOWN else None

    def usual_s(self, kind: StepKindOfPython, n_sessions: int) -> float | None:
        """Return the usual seconds per session of this kind of step; None until known."""
        one = self._medians[kind, n_sessions.bit_length()]
        return one.value if one.count >= KNOWN else None

    def observe_messages(self, timing: StepTiming, outside_s: float, n_sent: int, *, guessing: bool) -> None:
        """Learn the Python time of drafters' messages from a step.

        Args:
            timing: Times of the step.
            outside_s: Seconds of the step outside the decode.
            n_sent: Sessions that drafters had; the step sent them messages about these.
            guessing: True if guesses were verified.
        """
        n = timing.n_sessions
        if n_sent or not guessing:  # otherwise the guesses are not drafters'
            self.observe("guessing" if guessing else "told" if n_sent else "quiet", n, outside_s)
        if not n_sent:
            self._drafters_s = {False: 0.0, True: 0.0}
            return
        share = n / n_sent
        more_s = self.more_s("guessing" if guessing else "told", "quiet", n)
        self._drafters_s[guessing] = more_s and share * more_s

    def drafters_cost(self, undrafted_rate: float, *, guessing: bool) -> float:
        """Return the cost of drafters' messages per session and step, in tokens.

        Args:
            undrafted_rate: Tokens per second of undrafted steps.
            guessing: True if the session had guesses; the time to handle them then counts too.

        Returns:
            The tokens that undrafted steps could make in the time; ASSUMED while the time is unknown.
        """
        seconds = self._drafters_s[guessing]
        return ASSUMED if seconds is None else seconds * undrafted_rate


class Rates:
    """Tokens per second, and the slowdown of decodes by drafters on the lead's cores."""

    def __init__(self, times: StepTimes) -> None:
        self.times = self.uncrowded = times  # uncrowded: of steps without a drafter on these cores
        self.throughput = Ratio(KEEP_RATE)  # tokens per second
        # of a step like the latest one, but without guesses: its seconds, and its tokens per second
        self.undrafted_s = self.undrafted_rate = 0.0
        self.n_cells = 0  # cells in use at the latest step
        self.python = PythonTimes()
        self._outside = Slope(KEEP_GUESS)  # seconds outside decodes by number of guesses, both per session
        self._crowding = Median(LATEST)  # decode time beside a drafter on these cores / uncrowded

    @property
    def guess_s(self) -> float:
        """Return the seconds of Python time that a verified guess takes; 0.0 until known."""
        return self._outside.value if self._outside.moments[0] >= LATEST else 0.0

    @property
    def crowding(self) -> float:
        """Return the factor by which a drafter on the lead's cores lengthens a decode; 1 if unknown."""
        return max(1.0, self._crowding.value) if self._crowding.count >= KNOWN else 1.0

    def uncrowded_s(self, n_rows: int, n_cells: int) -> float:
        """Return the seconds of a decode while no drafter works on the lead's cores.

        If no such decode with about n_cells cells was seen yet, its time in a short context is multiplied by
        t(n_cells) / t(short context), where t is the time of all decodes. Returns infinity if none is known.
        """
        curve = self.times.curve(n_cells)
        rows = min(n_rows, len(curve) - 1)
        if self.uncrowded is self.times:
            return curve[rows] or math.inf
        uncrowded_s, shortest_s = self.uncrowded.curve(n_cells)[rows], self.times.curve(0)[rows]
        if shortest_s and not self.uncrowded.has_seen(n_cells):
            uncrowded_s *= curve[rows] / shortest_s
        return uncrowded_s or math.inf

    def undisturbed_s(self, timing: StepTiming) -> float:
        """Return the seconds of the decode, or its usual seconds if it took over STEP_OUTLIER times as long.

        For example, a step during which the process was stopped says nothing about the cost of guesses.
        """
        curve = self.times.curve(timing.n_cells)
        usual_s = curve[min(timing.n_rows, len(curve) - 1)]
        return usual_s if 0.0 < STEP_OUTLIER * usual_s < timing.decode_s else timing.decode_s

    def learn(self, plan: DraftPlan, timing: StepTiming, *, uncrowded: bool) -> None:
        """Learn from a step without prompts.

        Args:
            plan: The step's plan.
            timing: The step's times.
            uncrowded: True if no drafter worked on the lead's cores.
        """
        self.n_cells = timing.n_cells
        self._observe(plan, timing, uncrowded=uncrowded)
        times, n = self.times, timing.n_sessions
        self.undrafted_s = times.undrafted_s(n, times.curve(timing.n_cells))
        self.undrafted_rate = n / self.undrafted_s if self.undrafted_s else 0.0
        self.throughput.observe(timing.n_tokens, timing.step_s)
        n_guesses, outside_s = plan.n_guesses, timing.step_s - timing.decode_s - plan.spent_s
        each_s = max(0.0, outside_s) / n
        self.python.observe("any", n, max(0.0, outside_s))
        usual_s = self.python.usual_s("any", n)
        if usual_s is not None:
            self._outside.observe(n_guesses / n, min(each_s, STEP_OUTLIER * usual_s))

    def _observe(self, plan: DraftPlan, timing: StepTiming, *, uncrowded: bool) -> None:
        """Learn the times of decodes, and how much a drafter slows them.

        uncrowded: True if no drafter worked on the lead's cores.
        """
        times, rows, cells = self.times, timing.n_rows, timing.n_cells
        if not uncrowded and self.uncrowded is times:
            self.uncrowded = deepcopy(times)
        shapes = times.shapes if times.shapes.steady else None
        if not plan.is_shape and (shapes is None or shapes.is_steady(rows)):
            times.observe(rows, cells, timing.decode_s)
            if uncrowded and self.uncrowded is not times:
                self.uncrowded.observe(rows, cells, timing.decode_s)
            elif not uncrowded and (uncrowded_s := self.uncrowded.measured(rows, cells)):
                self._crowding.observe(timing.decode_s / uncrowded_s)
        if shapes is not None:
            shapes.observe(rows, cells, timing.decode_s)
