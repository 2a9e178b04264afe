"""Does a drafter on this machine help more than it hurts? Tried out now and then. Pure.

A drafter that shares cores or memory bandwidth with the lead slows every step, whether its guesses are used
or not, which no count of accepted tokens shows. So now and then it rests for some steps. If plain steps then
make more tokens per second than the server did before, either the drafter slows it or its guesses were poor
for a while, which the gate deals with. To tell which, plain steps follow beside a drafter that drafts: it
goes on resting only if these take longer than the plain steps at rest.

A drafter whose guesses are never right is tried as soon as that shows: the plain steps that there were beside
it, if some came in a row, are compared with those at rest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from enum import Enum, auto
from statistics import median
from typing import NamedTuple

# Steps, where nothing else is said; measured for ADR 8. Off by two: shorter ones decide by luck, longer ones
# give a drafter that hurts a fifth of the speed for as long.
WARM_UP = 64  # before the first trial
WINDOW = 512  # the latest, that say how fast it is with drafters: one text says little
RESUMED = 96  # after a rest, that say whether drafters help now
TRIAL = 16  # without drafters
ENOUGH = 4  # plain ones that say how fast it is without
MARGIN = 1.03  # times the rate with drafters that the rate without must be
CLEARLY = 1.25  # times a rate, from which a few steps decide
JUDGED = 16  # guesses, all wrong, that make a drafter useless
SETTLED = 3  # plain ones in a row, after which they take their usual time on a GPU
HOLD, MOST_HOLD = 512, 8192  # until the next trial; doubled whenever the answer stays
LITTLE = 1.1  # times as long: where plain steps beside drafters take no more, other texts may be worth it,
BRIEF = 64  # and the first pause is this long


class _Phase(Enum):
    HELD = auto()  # the last decision stands
    RESTING = auto()  # tried without drafters
    RESUMED = auto()  # tried with them
    BESIDE = auto()  # they draft, and nobody uses it


class _TriedStep(NamedTuple):
    sessions: int
    tokens: int
    seconds: float


class Trial:
    """Decides after each step whether drafters on this machine draft on."""

    def __init__(self) -> None:
        self.on = True
        self.begun = False  # whether there was a step
        self._phase = _Phase.HELD
        self._settled = True  # what was decided last
        self._with: deque[_TriedStep] = deque(maxlen=WINDOW)
        self._plain: deque[_TriedStep] = deque(maxlen=2 * TRIAL)  # plain steps at rest
        self._beside: deque[_TriedStep] = deque(maxlen=TRIAL)  # plain steps beside drafters
        self._run = 0  # plain steps in a row, by now
        self._left = WARM_UP
        self._hold = HOLD
        self._score = self._mark = (0, 0)  # by now, and when the latest JUDGED guesses began
        self._hopeless = False  # whether these were all wrong
        self._due: int | None = None  # steps left when a trial began early, which one does once

    @property
    def muted(self) -> bool:
        """Whether the next step goes without guesses."""
        return self._phase is _Phase.BESIDE

    def step(
        self, tokens: int, seconds: float, *, plain: bool, score: tuple[int, int] = (0, 0), sessions: int = 1
    ) -> bool:
        """A step of `sessions` sessions committed `tokens` tokens in `seconds`, `plain` if without guesses.
        score: how many of the drafters' guesses were judged so far, and how many were right. Returns whether
        drafters draft from now on."""
        step, self.begun = _TriedStep(sessions, tokens, seconds), True
        if self.on and not self.muted:
            self._with.append(step)
        self._run = self._run + 1 if plain else 0
        tried = self._phase in (_Phase.RESTING, _Phase.BESIDE)
        if plain and seconds > 0.0 and (tried or self._run >= SETTLED):
            (self._beside if self.on else self._plain).append(step)
        self._left -= 1
        self._judge(score)
        if self._begins_early() or self._left <= 0 or self._is_clear():
            self._turn()
        return self.on

    def _judge(self, score: tuple[int, int]) -> None:
        self._score = score
        judged, right = score[0] - self._mark[0], score[1] - self._mark[1]
        if judged < 0:
            self._mark = score  # others are here now
        if judged >= JUDGED:
            self._hopeless, self._mark = right == 0, score
            if not self._hopeless and self._phase is _Phase.HELD:
                self._beside.clear()  # what steps took long ago is no measure

    def _begins_early(self) -> bool:
        """Whether drafters turn out useless while no trial is on."""
        if not self._hopeless or self._phase is not _Phase.HELD or not self.on or self._due is not None:
            return False
        self._due = self._left
        return True

    def _turn(self) -> None:
        if self._phase is _Phase.HELD:
            if self.on:
                self._due = self._due if self._left > 0 else None
                self._plain.clear()
                self._begin(_Phase.RESTING, TRIAL, on=False)
            else:
                self._with.clear()
                self._beside.clear()
                self._hopeless, self._mark = False, self._score
                self._begin(_Phase.RESUMED, RESUMED, on=True)
        elif self._hopeless and len(self._beside) >= JUDGED // 2:
            self._decide(on=not self._slows())
        elif self._phase is _Phase.RESTING and self._is_better_without():
            self._beside.clear()
            self._begin(_Phase.BESIDE, 2 * TRIAL, on=True)  # the first half to get going
        elif self._phase is _Phase.BESIDE:  # why it began early may be true no more
            self._decide(on=not self._slows() or (self._due is not None and not self._hopeless))
        else:  # one that was found to slow steps does so still
            self._decide(on=not self._is_better_without())

    def _begin(self, phase: _Phase, n_steps: int, *, on: bool) -> None:
        self._phase, self._left, self.on = phase, n_steps, on

    def _decide(self, *, on: bool) -> None:
        if on and self._settled and self._due is not None:  # it goes on as if nothing had been
            self._begin(_Phase.HELD, self._due, on=True)
            return
        if on == self._settled:
            self._hold = min(2 * self._hold, MOST_HOLD)
        else:
            self._hold = HOLD if on or self._hopeless or self._slows(LITTLE) else BRIEF
        self._settled, self._due = on, None
        self._begin(_Phase.HELD, self._hold, on=on)

    def _is_better_without(self) -> bool:
        """By steps with equally many sessions. False where guesses of another source fill the steps at rest:
        then nothing is known, and nothing is lost."""
        used, plain = _comparable(self._with, self._plain)
        return min(len(used), len(plain)) >= ENOUGH and median(map(_speed, plain)) > MARGIN * _rate(used)

    def _is_clear(self) -> bool:
        """Whether this phase need not go on, by its settled steps: a drafter finishes its work before it
        rests, and has to catch up before it is of use."""
        if self._phase is _Phase.RESTING:
            used, plain = _comparable(self._with, self._plain)
            if len(plain) < 2 * ENOUGH:
                return False
            return self._hopeless or CLEARLY * median(map(_speed, plain[ENOUGH:])) < _rate(used)
        if self._phase is _Phase.BESIDE:
            return self._left <= TRIAL - ENOUGH and self._slows(CLEARLY, latest=ENOUGH)
        if self._phase is _Phase.RESUMED:
            used, plain = _comparable(list(self._with)[TRIAL:], self._plain)
            if self._hopeless and len(self._with) >= TRIAL:
                return True
            if min(len(used) - TRIAL, len(plain) - ENOUGH) < 0:
                return False
            return median(map(_speed, plain)) > CLEARLY * _rate(used)
        return False

    def _slows(self, by: float = MARGIN, latest: int = TRIAL) -> bool:
        """Whether plain steps beside drafters (the `latest` ones) take `by` times as long as at rest."""
        beside, plain = _comparable(list(self._beside)[-latest:], self._plain)
        plain = plain[ENOUGH:] if len(plain) >= 2 * ENOUGH else plain  # once drafters have settled
        if min(len(beside), len(plain)) < ENOUGH:
            return False
        return median(map(_speed, plain)) > by * median(map(_speed, beside))


def _comparable(
    some: Collection[_TriedStep], others: Collection[_TriedStep]
) -> tuple[list[_TriedStep], list[_TriedStep]]:
    """Keep steps with the number of sessions that both have most steps of."""
    ours, theirs = Counter(s.sessions for s in some), Counter(s.sessions for s in others)
    n = max(ours, key=lambda sessions: min(ours[sessions], theirs[sessions]), default=0)
    return [s for s in some if s.sessions == n], [s for s in others if s.sessions == n]


def _speed(step: _TriedStep) -> float:
    """Tokens per second."""
    return step.tokens / step.seconds


def _rate(steps: Collection[_TriedStep]) -> float:
    """Tokens per second of all of them; 0 for none."""
    seconds = sum(step.seconds for step in steps)
    return sum(step.tokens for step in steps) / seconds if seconds > 0.0 else 0.0
