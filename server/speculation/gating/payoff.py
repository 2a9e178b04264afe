"""Does a group of sources bring more than it costs? Tried out now and then. Pure.

A group is the drafters of the lead's machine, or lookups. What it costs shows in no single
count: rows of the batch, the lead's Python for messages, cores and memory bandwidth that both use. So now
and then a group that guesses rests for some steps, or one that rests guesses, and tokens per second decide.
What helps one session may hurt sixteen: each number of sessions, by powers of two, has its own verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from server.estimators import Rate, Ratio

# Seconds lost by trials, per second. Off by two: twice, 1% more is lost; half, a group that begins to help
# rests twice as long.
LOSS = 0.01
# Times the rate of the other way that a change must bring. Off by two: 1.06, as much is left lying; 1.015, it
# flickers.
MARGIN = 1.03
# How often in a row a new reply takes back that a group rests: the text before may have been hard to guess.
# Half: two such texts cost the next replies seconds of rest; twice: a bad drafter slows four replies.
PARDONS = 2
FIRST = 16  # steps before the first trial. Twice: a drafter on the lead's cores slows a short reply
HOLD = {True: 256, False: 64}  # steps that a group at least guesses, or rests, between two trials
LENGTH = {True: 64, False: 16}  # counted steps of a trial with and without; with it, a step's tokens scatter
# Counted steps with and without that say anything. Off by two: with half as many luck decides, with twice as
# many a trial costs twice as much.
FEWEST = {True: 8, False: 4}
# Standard errors by which rates must differ for a trial to end before its LENGTH. Simulated, with texts of 60
# steps and with 64 sessions: 1.5 to 4 differ by less than 1 percent of the rate, 6 loses 1 to 2.
APART = 2.0
SETTLED = 4  # steps until a group that rests has ended its work, or one that goes on has read what it missed
UNHEARD = 64  # steps of a trial until it counts although no guess came
# Steps until fewer sessions count as fewer: a group that goes on has to read them first, which takes about as
# long. Off by two: half, it reads what ends soon; twice, the rest of a long reply begins without it.
FEWER = 32
# Of the past, per step: about the last 100 steps. Off by two: half, one hard line decides about the text;
# twice, a group that began to hurt does so for twice as long.
KEEP = 0.99


class _Arm:
    """What steps with the group, or without it, made of late."""

    __slots__ = ("n_steps", "rate")

    def __init__(self) -> None:
        self.rate = Rate(KEEP)
        self.n_steps = 0

    def observe(self, n_tokens: float, seconds: float) -> None:
        self.rate.observe(n_tokens, seconds)
        self.n_steps += 1


class _Band:
    """What is known for one number of sessions. on: the verdict, None before there is one; left: steps until
    the next trial. pardons: how often a rest may still be taken back."""

    __slots__ = ("arms", "left", "on", "pardons")

    def __init__(self) -> None:
        self.on: bool | None = None
        self.pardons = PARDONS
        self.arms = {True: _Arm(), False: _Arm()}
        self.left = FIRST

    def ratio(self) -> float | None:
        """Tokens per second with the group by those without; None while one of them is not known."""
        used, plain = self.arms[True], self.arms[False]
        if used.n_steps < FEWEST[True] or plain.n_steps < FEWEST[False]:
            return None
        return used.rate.value / max(plain.rate.value, 1e-9)

    def is_clear(self, ratio: float) -> bool:
        """Whether such a ratio is more than luck."""
        error = math.hypot(self.arms[True].rate.error, self.arms[False].rate.error)
        return abs(math.log(max(ratio, 1e-9))) > APART * error


class Payoff:
    """Whether one group guesses. Learns from every step without prompts."""

    def __init__(self, *, begins: bool = True) -> None:
        """begins: whether it guesses before its first trial."""
        self.on = self._begins = begins
        self._bands: dict[int, _Band] = {}  # by the number of bits of the number of sessions
        # Seconds until the next trial, with any number of sessions. With a time for each number, a drafter on
        # two cores of a lead with 1 to 16 clients was on trial for a third of the first minute.
        self._left_s = 0.0
        self._at = 0  # that of now
        self._n_fewer = 0  # steps in a row with fewer
        self._n_since = 0  # steps since the group went on, or to rest
        self._before = 0  # times that guesses had come by then
        self._attempt: Ratio | None = None  # tokens by seconds of a trial that goes on
        self._may_pay = True

    @property
    def is_tried(self) -> bool:
        return self._attempt is not None

    @property
    def is_known(self) -> bool:
        """True once there is a verdict for any number of sessions."""
        return any(band.on is not None for band in self._bands.values())

    def memory(self) -> dict[str, tuple[bool, float]]:
        """What recall() takes after a restart: verdicts and seconds until the next trial, by the number of
        bits of the number of sessions."""
        known = {bits: band for bits, band in self._bands.items() if band.on is not None}
        return {str(bits): (band.on is True, max(0.0, self._left_s)) for bits, band in known.items()}

    def recall(self, memory: object) -> None:
        """Begin with these verdicts, each of which is tried when it would have been without the restart."""
        found = cast(dict[str, object], memory) if isinstance(memory, dict) else {}
        for bits, known in found.items():
            match known:
                case (bool() as on, int() | float() as left_s) if bits.isdecimal() and left_s >= 0.0:
                    band = self._bands[int(bits)] = _Band()
                    band.on, band.left, band.pardons = on, HOLD[on], 0
                    self._left_s = max(self._left_s, float(left_s))
                case _:
                    pass

    def serve(self, n_sessions: int, *, may_pay: bool = True) -> None:
        """The next step serves this number of sessions, prompts included. More of them count at once, fewer
        after FEWER steps or a moment without any. may_pay: guesses could pay there if they were good and cost
        nothing; else the group rests and is not tried."""
        band = n_sessions.bit_length()
        self._n_fewer = 0 if band == self._at else self._n_fewer + 1 if band else FEWER
        if band > self._at or (band and self._n_fewer >= FEWER):
            self._end_attempt()
            self._at, self._n_fewer = band, 0
        if band == self._at:
            self._may_pay = may_pay
        if self._attempt is None or not self._may_pay:
            self._end_attempt()
            self._turn(self._may_pay and self._verdict(self._at))

    def step(
        self,
        n_sessions: int,
        n_tokens: float,
        seconds: float,
        *,
        heard: Callable[[], int] | None = None,
        may_try: bool = True,
    ) -> None:
        """A step of n_sessions sessions committed n_tokens tokens. heard: tells how often guesses came, if a
        trial waits for them; may_try: no other group is on trial."""
        self._n_since += 1
        if self._n_since == 1 and heard:
            self._before = heard()
        bits = n_sessions.bit_length()
        band = self._bands.get(bits)
        if band is None:
            band = self._bands[bits] = _Band()
        if self._n_since > SETTLED and self._counts(heard):
            band.arms[self.on].observe(n_tokens, seconds)
        band.left -= 1
        self._left_s -= seconds
        if self._attempt is not None:
            self._attempt.observe(n_tokens, seconds)
        if bits == self._at:
            self._judge(band, self._attempt, may_try=may_try)

    def _counts(self, heard: Callable[[], int] | None) -> bool:
        """False while a group on trial has not said anything yet: it reads what came while it rested."""
        if heard is None or not self.on or self._attempt is None or self._n_since > UNHEARD:
            return True
        return heard() > self._before

    def new_reply(self) -> None:
        """A reply begins alone. If the group rests, the text of the one before may have been hard to guess:
        this one begins as if nothing were known, PARDONS times in a row. Not for a group that rests until it
        was tried, which is on the lead's own cores."""
        band = self._bands.get(1)
        if not self._begins or band is None or band.on is not False or not band.pardons:
            return
        band.pardons -= 1
        band.on, band.left, self._left_s = None, FIRST, 0.0
        band.arms[True] = _Arm()
        if self._at <= 1:
            self._attempt = None
            self._turn(self._may_pay and self._verdict(1))

    def forget(self) -> None:
        """Another group rests or goes on: what steps made so far is no measure for a trial any more."""
        for band in self._bands.values():
            band.arms = {True: _Arm(), False: _Arm()}
            band.left = max(band.left, FIRST)

    def _judge(self, band: _Band, attempt: Ratio | None, *, may_try: bool) -> None:
        """Begin a trial, end one, or let a group rest that makes less than steps without it did."""
        ratio, tried = band.ratio(), band.arms[self.on].n_steps
        if attempt is None:
            if self.on and ratio is not None and ratio * MARGIN < 1.0:
                band.on, band.left = False, HOLD[False]
                self._turn(False)
                return
            due = band.left <= 0 and self._left_s <= 0.0 and tried >= FIRST - SETTLED
            if may_try and self._may_pay and due:
                self._attempt = Ratio(1.0)
                self._turn(not self.on)
                band.arms[self.on] = _Arm()
        elif ratio is not None and (tried >= LENGTH[self.on] or band.is_clear(ratio)):
            self._end_attempt()
            band.on = ratio * (1 / MARGIN if self.on else MARGIN) > 1.0
            band.left = HOLD[band.on]
            if band.on:
                band.pardons = PARDONS
            self._turn(band.on)

    def _end_attempt(self) -> None:
        """End the trial that goes on, if any. The next one comes when what was lost is LOSS of the time."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            usual = self._bands[self._at].arms[not self.on].rate.value
            self._left_s = max(0.0, attempt.under - attempt.over / max(usual, 1e-9)) / LOSS

    def _turn(self, on: bool) -> None:
        if on != self.on:
            self.on, self._n_since = on, 0

    def _verdict(self, band: int) -> bool:
        """The verdict for about this number of sessions, or for the nearest smaller one that has one."""
        while band and (band not in self._bands or self._bands[band].on is None):
            band -= 1
        return self._bands[band].on is not False if band else self._begins
