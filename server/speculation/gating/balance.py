"""Do drafters bring one session more than they cost it? Counted in tokens. Pure.

Where a drafter's guesses are hardly ever right, the lead still takes in its messages, looks at its guesses,
and now and then verifies one: a few percent of each step. So the drafters of such a session rest, and are
asked again later, for the text may have changed. What no count tells, such as cores that both use, is
payoff.py's.
"""

from __future__ import annotations

from server.engine.proposer import Planned, TimedStep
from server.estimators import Median, Ratio

# Of the past, per step: about the last 33 steps count. Off by two: half, one unlucky line ends a good draft;
# twice, a hard reply pays for 48 steps until its drafters rest.
KEEP = 0.97
# Steps with messages until the balance counts: what is lost by then, at 5 percent a step, is half a step. Off
# by two, simulated with the bundled pair: 24, 7 of 40 hard replies below 0.95 of no drafts instead of 1; 6,
# the first wrong guesses of a good draft decide.
TRIED = 12
# Steps that drafters first rest, and longest; each rest in a row takes twice as long. With 64 and TRIED a
# sixth of the loss stays at first. Off by two: half, a quarter; twice, easy replies lose 2
# percent (simulated).
RESTS = (64, 512)


LATEST = 31  # steps of a kind. Half: their scatter shows; twice: a change is seen after 31 steps, not 16
# Steps of a kind until it counts: a process's first ones take up to ten times as long. Half: one of them
# counts whole; twice: a bad drafter costs ten steps more.
KNOWN = 5
QUIET, TOLD, GUESSING = "quiet", "told", "guessing"  # steps: without drafters, with them, with guesses


class Overhead:
    """Seconds that drafters take from a step outside its decode, for each session that they have: messages,
    choosing, and what verifying takes in Python. By the number of sessions, in powers of two; nothing until
    steps without drafters are known there, too."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, str], Median] = {}  # seconds for each session of the step
        self._n_sessions, self._n_told = 1, 0  # of the latest step

    def observe(self, planned: Planned, step: TimedStep, n_told: int) -> None:
        """A step without prompts. n_told: sessions that drafters have."""
        self._n_sessions, self._n_told = step.n_sessions, n_told
        guessing = any(planned.proposals)
        if guessing and not n_told:
            return  # guesses of others
        kind = GUESSING if guessing else TOLD if n_told else QUIET
        outside_s = max(0.0, step.step_s - step.decode_s - planned.spent_s)
        self._of(kind).observe(outside_s / step.n_sessions)

    def seconds(self, *, guessing: bool) -> float:
        """In a step like the latest one. guessing: with guesses."""
        kind, quiet = self._of(GUESSING if guessing else TOLD), self._of(QUIET)
        if not self._n_told or min(kind.count, quiet.count) < KNOWN:
            return 0.0
        return max(0.0, kind.value - quiet.value) * self._n_sessions / self._n_told

    def _of(self, kind: str) -> Median:
        return self._kinds.setdefault((self._n_sessions.bit_length(), kind), Median(LATEST))


class Balance:
    """Of one session, told step by step."""

    def __init__(self) -> None:
        self.resting = False
        self._net = Ratio(KEEP)
        self._n_steps = self._left = 0
        self._next_rest = RESTS[0]

    def step(self, n_accepted: float, n_lost: float) -> None:
        """A step in which drafters were heard, or rest: tokens that they brought, and tokens that plain steps
        would have made in the time they took. At the rate with drafts a text that is harder to guess than the
        one before would have its drafters rest although they help."""
        if self.resting:
            self._left -= 1
            if self._left <= 0:
                self.resting, self._net, self._n_steps = False, Ratio(KEEP), 0
            return
        self._net.observe(n_accepted - n_lost, 1.0)
        self._n_steps += 1
        if self._n_steps < TRIED:
            return
        if self._net.value < 0.0:
            self.resting, self._left = True, self._next_rest
            self._next_rest = min(2 * self._next_rest, RESTS[1])
        else:
            self._next_rest = RESTS[0]
