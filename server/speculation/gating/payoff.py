"""Does a group of sources bring more than it costs? Tried out now and then. Pure.

A group is the drafters of one machine, or the draft model in the lead. What it costs shows in no single
count: rows of the batch, the lead's Python for messages, cores and memory bandwidth that both use. So now
and then a group that guesses rests for some steps, or one that rests guesses, and tokens per second decide.
What helps one session may hurt sixteen: each number of sessions, by powers of two, has its own verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from server.estimators import Ratio

# Seconds lost by trials, per second. Off by two: twice, 1% more is lost; half, a group that begins to help
# rests twice as long.
LOSS = 0.01
# Times the rate so far that a trial must reach. Off by two: 1.06, as much is left lying; 1.015, it flickers.
MARGIN = 1.03
FIRST = 16  # steps before the first trial. Twice: a drafter on the lead's cores slows a short reply
HOLD = {True: 256, False: 64}  # steps that a group at least guesses, or rests, between two trials
LENGTH = {True: 64, False: 16}  # counted steps of a trial with and without; with it, a step's tokens scatter
SETTLED = 4  # steps until a group that rests has ended its work
# Steps until fewer sessions count as fewer: a group that goes on has to read them first, which takes about as
# long. Off by two: half, it reads what ends soon; twice, the rest of a long reply begins without it.
FEWER = 32
UNHEARD = 64  # steps of a trial until it counts although no guess came
# Counted steps of a trial with and without from which it ends early, at CLEARLY times the rate so far. Off by
# two: with half as many luck decides, with twice as many a trial costs twice as much.
CLEAR, CLEARLY = {True: 8, False: 4}, 1.25
# Of the past, per step: about the last 100 steps. Off by two: half, one hard line ends in a trial's verdict
# about the text; twice, the trial is compared with the text before this one.
KEEP = 0.99


@dataclass(slots=True)
class _Attempt:
    """A trial that goes on. before: messages of the group until it began."""

    on: bool
    before: int
    n_steps: int = 0
    n_counted: int = 0
    n_tokens: int = 0
    seconds: float = 0.0
    all_tokens: int = 0
    all_s: float = 0.0
    heard: bool = False

    def step(self, n_tokens: int, seconds: float, n_heard: int) -> None:
        self.n_steps += 1
        self.all_tokens += n_tokens
        self.all_s += seconds
        self.heard = self.heard or not self.on or n_heard > self.before or self.n_steps > UNHEARD
        if self.heard and self.n_steps > SETTLED:
            self.n_counted += 1
            self.n_tokens += n_tokens
            self.seconds += seconds

    @property
    def rate(self) -> float:
        return self.n_tokens / self.seconds if self.seconds > 0.0 else 0.0

    def is_over(self, rate: float) -> bool:
        """rate: tokens per second before."""
        if self.n_counted >= LENGTH[self.on]:
            return True
        return self.n_counted >= CLEAR[self.on] and not rate / CLEARLY < self.rate < rate * CLEARLY


@dataclass(slots=True)
class _Band:
    """What is known for one number of sessions. on: the verdict, None before the first trial; left_s: until
    the next trial, by what the last one cost."""

    on: bool | None = None
    rate: Ratio = field(default_factory=lambda: Ratio(KEEP))
    n_steps: int = 0
    hold: int = FIRST
    left_s: float = 0.0

    def forget(self) -> None:
        """The rate so far is no measure for a trial any more."""
        self.rate, self.n_steps = Ratio(KEEP), min(self.n_steps, self.hold - FIRST)


class Payoff:
    """Whether one group guesses. Learns from every step without prompts."""

    def __init__(self) -> None:
        self.on = True
        self._bands: dict[int, _Band] = {}
        self._at = 0  # number of bits of the number of sessions
        self._n_fewer = 0  # steps in a row with fewer
        self._attempt: _Attempt | None = None
        self._may_pay = True

    @property
    def is_tried(self) -> bool:
        return self._attempt is not None

    def serve(self, n_sessions: int, *, may_pay: bool = True) -> None:
        """The next step serves this number of sessions, prompts included. More of them count at once, fewer
        after FEWER steps or a moment without any. may_pay: guesses could pay there if they were good and cost
        nothing; else the group rests and is not tried."""
        band = n_sessions.bit_length()
        self._n_fewer = 0 if band == self._at else self._n_fewer + 1 if band else FEWER
        if band > self._at or (band and self._n_fewer >= FEWER):
            self._bands.setdefault(band, _Band())
            self._at, self._n_fewer, self._attempt = band, 0, None
        if band == self._at:
            self._may_pay = may_pay
        if self._attempt is None or not self._may_pay:
            self._attempt, self.on = None, self._may_pay and self._verdict(self._at)

    def step(
        self, n_sessions: int, n_tokens: int, seconds: float, *, n_heard: int = 0, may_try: bool = True
    ) -> None:
        """A step of n_sessions sessions committed n_tokens tokens. n_heard: times that guesses of the group
        came; may_try: no other group is on trial."""
        if n_sessions.bit_length() != self._at:
            return
        band = self._bands[self._at]
        if self._attempt is not None:
            self._attempt.step(n_tokens, seconds, n_heard)
            if self._attempt.is_over(band.rate.value):
                self._judge(band, self._attempt)
            return
        band.rate.observe(n_tokens, seconds)
        band.n_steps += 1
        band.left_s -= seconds
        if may_try and self._may_pay and band.n_steps >= band.hold and band.left_s <= 0.0:
            self.on = not self.on
            self._attempt = _Attempt(self.on, n_heard)

    def forget(self) -> None:
        """Another group rests or goes on: what steps made so far is no measure for a trial any more."""
        if self._at:
            self._bands[self._at].forget()

    def _verdict(self, band: int) -> bool:
        """The verdict for about this number of sessions, or for the nearest smaller one that has one."""
        while band and (band not in self._bands or self._bands[band].on is None):
            band -= 1
        return self._bands[band].on is not False if band else True

    def _judge(self, band: _Band, attempt: _Attempt) -> None:
        """End a trial."""
        before = max(band.rate.value, 1e-9)
        band.left_s = max(0.0, attempt.all_s - attempt.all_tokens / before) / LOSS
        band.on = attempt.on if attempt.rate > MARGIN * before else not attempt.on
        if band.on == attempt.on:
            band.forget()
        band.hold, band.n_steps = HOLD[band.on], 0
        self._attempt, self.on = None, band.on
