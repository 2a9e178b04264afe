"""Does a drafter on this machine help more than it hurts? Tried out now and then. Pure.

A drafter that shares cores or memory bandwidth with the lead makes every step slower, used or not, which no
count of accepted tokens shows. So now and then it rests for a few steps. If what these take without any guess
beats what the server did before, either the drafter slows it, or its guesses were poor for a while, which is
the gate's affair. To tell which, as many steps do without guesses beside a drafter that drafts: only if they
take longer than those while it rested, it goes on resting.

Drafters that never guess right cannot make up for anything: they are tried as soon as that shows. The
steps beside them that had no guesses anyway, where there are some in a row, are compared with those while
they rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from statistics import median

WARM_UP = 64  # steps before the first trial
WINDOW = 512  # steps, the latest, that say how fast it is with drafters: one text says little
RESUMED = 96  # steps after a rest that say whether drafters help now
TRIAL = 16  # steps without them
ENOUGH = 4  # plain steps that say how fast it is without
MARGIN = 1.03  # the rate without must be this much better
CLEARLY = 1.25  # where one way is so much better, a few steps of the other are enough
JUDGED = 16  # guesses that say whether drafters are of any use: all of them wrong
SETTLED = 3  # plain steps in a row: on a GPU one after a step of another width takes longer
HOLD, MOST_HOLD = 512, 8192  # steps until the next trial, doubled whenever the answer is the same
LITTLE = 1.1  # where they slow steps by no more, other texts may be worth it
BRIEF = 64  # steps until the next trial then, to begin with


class _Phase(Enum):
    HELD = auto()  # the last decision stands
    RESTING = auto()  # tried without drafters
    RESUMED = auto()  # tried with them
    BESIDE = auto()  # they draft, and nobody uses it


class Trial:
    """Tells after each step whether drafters on this machine shall go on."""

    def __init__(self) -> None:
        self.on = True
        self._phase = _Phase.HELD
        self._settled = True  # what was decided last
        self._with: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # tokens, seconds
        self._plain: deque[float] = deque(maxlen=2 * TRIAL)  # tokens per second of plain steps at rest
        self._beside: deque[float] = deque(maxlen=TRIAL)  # the same beside drafters, the latest
        self._left = WARM_UP
        self._hold = HOLD
        self._mark = (0, 0)  # the score when the latest JUDGED guesses began
        self._hopeless = False  # how they ended
        self._early = False  # whether the decision that holds was made before it was due
        self._run = 0  # plain steps in a row, by now

    @property
    def muted(self) -> bool:
        """Whether the next step shall do without guesses, whatever there are."""
        return self._phase is _Phase.BESIDE

    def step(self, tokens: int, seconds: float, *, plain: bool, score: tuple[int, int] = (0, 0)) -> bool:
        """One step committed so many tokens in so many seconds, `plain`ly if without guesses. score: how many
        of the drafters' guesses were judged so far, and how many were right. Returns whether drafters shall
        be on from now."""
        if self.on and not self.muted:
            self._with.append((tokens, seconds))
        self._run = self._run + 1 if plain else 0
        tried = self._phase in (_Phase.RESTING, _Phase.BESIDE)
        if plain and seconds > 0.0 and (tried or self._run >= SETTLED):
            (self._beside if self.on else self._plain).append(tokens / seconds)
        self._left -= 1
        if self._judge(score) or self._left <= 0 or self._is_clear():
            self._turn()
        return self.on

    def _judge(self, score: tuple[int, int]) -> bool:
        """Whether it shows just now, while they are not tried anyway, that drafters are of no use."""
        judged, right = score[0] - self._mark[0], score[1] - self._mark[1]
        if judged < 0:
            self._mark = score  # others are here now
        if judged < JUDGED:
            return False
        self._hopeless, self._mark = right == 0, score
        if self._phase is not _Phase.HELD or not self.on:
            return False
        if not self._hopeless:
            self._beside.clear()  # what steps took long ago is no measure
        if self._early or not self._hopeless:
            return False
        self._early = True
        return True

    def interrupt(self) -> None:
        """There is no drafter on this machine: whatever was tried is void."""
        self._hopeless = self._early = False
        self._beside.clear()
        if self._phase is not _Phase.HELD or not self.on:
            self._settled = True
            self._begin(_Phase.HELD, self._hold, on=True)

    def _turn(self) -> None:
        if self._phase is _Phase.HELD:
            if self.on:
                self._early = self._early and self._left > 0
                self._plain.clear()
                self._begin(_Phase.RESTING, TRIAL, on=False)
            else:
                self._with.clear()
                self._beside.clear()
                self._hopeless = False
                self._begin(_Phase.RESUMED, RESUMED, on=True)
        elif self._hopeless and len(self._beside) >= JUDGED // 2:
            self._decide(on=not self._slows())
        elif self._phase is _Phase.RESTING and self._is_better_without():
            self._beside.clear()
            self._begin(_Phase.BESIDE, 2 * TRIAL, on=True)  # the first half to get going
        elif self._phase is _Phase.BESIDE:
            self._decide(on=not self._slows())
        else:  # one that was found to slow steps does so still
            self._decide(on=not self._is_better_without())

    def _begin(self, phase: _Phase, n_steps: int, *, on: bool) -> None:
        self._phase, self._left, self.on = phase, n_steps, on

    def _decide(self, *, on: bool) -> None:
        if on == self._settled:
            self._hold = min(2 * self._hold, MOST_HOLD)
        else:
            self._hold = HOLD if on or self._hopeless or self._slows(LITTLE) else BRIEF
        self._settled = on
        self._begin(_Phase.HELD, self._hold, on=on)

    def _is_better_without(self) -> bool:
        rate = _rate(self._with)
        if len(self._plain) < ENOUGH or not rate:
            return False  # guesses of another source fill the steps: nothing is known, nothing is lost
        return median(self._plain) > MARGIN * rate

    def _is_clear(self) -> bool:
        """Whether what is tried need not go on, by how it has gone since it settled: a drafter ends what it
        is at before it rests, and has to catch up before it is of use."""
        if self._phase is _Phase.RESTING:
            settled = list(self._plain)[ENOUGH:]
            if len(settled) < ENOUGH:
                return False
            return self._hopeless or CLEARLY * median(settled) < _rate(self._with)
        if self._phase is _Phase.BESIDE:
            late = self._left <= TRIAL - ENOUGH and len(self._beside) >= ENOUGH
            return late and median(self._plain) > CLEARLY * median(list(self._beside)[-ENOUGH:])
        if self._phase is _Phase.RESUMED and len(self._plain) >= ENOUGH:
            settled = list(self._with)[TRIAL:]
            if self._hopeless and len(self._with) >= TRIAL:
                return True
            return len(settled) >= TRIAL and median(self._plain) > CLEARLY * _rate(settled)
        return False

    def _slows(self, by: float = MARGIN) -> bool:
        if min(len(self._plain), len(self._beside)) < ENOUGH:
            return False
        return median(self._plain) > by * median(self._beside)


def _rate(steps: Iterable[tuple[int, float]]) -> float:
    """Tokens per second of steps of so many tokens and seconds each; 0 for none."""
    tokens, seconds = 0, 0.0
    for n, s in steps:
        tokens, seconds = tokens + n, seconds + s
    return tokens / seconds if seconds > 0.0 else 0.0
