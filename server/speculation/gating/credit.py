"""What a group of sources may still lose: what it brought less what it cost, in tokens of a session. Pure.

A group is the drafters on the lead's cores, a draft model in the lead, or lookups. Its cost is counted
step by step: rows, guesses made in the lead, messages and searching in the lead's Python, and the time
that decodes take longer while a drafter uses the cores. A group that has lost its stake rests until its
loss is LOSS of all tokens.
"""

from __future__ import annotations

import math
from copy import copy
from typing import cast

# Of all tokens: what a group, or guesses in one session, may lose. Off by two: twice, 1% more is lost; half,
# a group that begins to help rests twice as long.
LOSS = 0.01
# Tokens of a session that a group may lose before it has brought any. Half: one hard reply, in which models
# rest after 12 steps, may end the drafters' credit; twice: a bad drafter costs 10 tokens at first.
CREDIT = 5.0
# How often a rest doubles, if the group brought nothing since the one before: a try also costs what is not
# counted, such as prompts that are read beside a drafter. 2: a bad drafter is tried twice as often; 4: one
# that begins to help may rest for 8000 steps.
DOUBLED = 3
# Of what it brought, per step: the last 100 steps count. Half: one hard line decides about
# the text; twice: a group that began to hurt does so for twice as long.
FORGOTTEN = 0.01
# Share of the steps in which a group rests to see what they take without it. Twice: half a percent of what it
# brings is lost; half: a machine that became quicker hides for twice as long that a drafter slows it.
LOOK = 0.0025
# Steps until fewer sessions count as fewer: a group that goes on has to read them first, which takes about as
# long. Off by two: half, it reads what ends soon; twice, the rest of a long reply begins without it.
FEWER = 32


class Credit:
    """Of one group with about the same number of sessions. left: it guesses in the left-th step from now; 0:
    it does already. looks: it rests to see what steps take without it."""

    def __init__(self, wait: int) -> None:
        """wait: steps until it guesses, at first and once more in each wait / LOOK."""
        self._wait = self.left = wait
        self._most = round(wait / LOOK) or -1  # steps with guesses before another look; -1: none
        self.looks = wait > 0
        self._n_rests = 0  # in a row, between which it brought nothing
        self._begin()

    def _begin(self) -> None:
        self.tokens = 0.0
        self._lost = 0.0
        self._n_steps = 0  # that it guessed for

    def wait(self) -> None:
        """It rests for one more step."""
        self.left -= 1
        self.looks = self.looks and self.left > 0

    def step(self, net: float, stake: float) -> None:
        """A step in which it guessed, and brought each session `net` tokens beyond its cost. stake: tokens
        of a session that it may lose before it has brought any."""
        tokens = self.tokens
        self.tokens += net - FORGOTTEN * tokens if tokens > 0.0 else net
        self._lost = max(0.0, self._lost - net)
        self._n_steps += 1
        if tokens > CREDIT:
            self._n_rests = 0
        if self.tokens < -stake:
            doubled = 1 << min(self._n_rests, DOUBLED)
            self.left, self.looks = max(self._wait, math.ceil(doubled * self._lost / LOSS)), False
            self._n_rests += 1
            self._begin()
        elif self._n_steps == self._most:
            self.left, self.looks, self._n_steps = self._wait, True, 0


class Credits:
    """Of one group, by powers of two of the number of sessions: what helps one may hurt sixteen. A number
    that is new begins as that of fewer sessions, with what these lost, but nothing of what they gained."""

    def __init__(self, wait: int = 0) -> None:
        """wait: as Credit takes it."""
        self._wait = wait
        self._now = Credit(wait)
        self._credits = {0: self._now}  # by the number of bits of the number of sessions
        self._at = 0  # the bits of now
        self._n_fewer = 0  # steps in a row with fewer

    @property
    def guesses(self) -> bool:
        """Whether the group guesses in the next step."""
        return not self._now.left

    @property
    def tokens(self) -> float:
        """Of each session, what the group brought of late beyond its cost."""
        return self._now.tokens

    @property
    def looks(self) -> bool:
        """Whether it rests to see what steps take without it, if it rests."""
        return self._now.looks

    def serve(self, n_sessions: int) -> None:
        """The next step serves this number of sessions, prompts included. More of them count at once, fewer
        after FEWER steps or a moment without any."""
        bits = n_sessions.bit_length()
        if bits == self._at:
            self._n_fewer = 0
        else:
            self._n_fewer = self._n_fewer + 1 if bits else FEWER
            if bits > self._at or (bits and self._n_fewer >= FEWER):
                self._at, self._now, self._n_fewer = bits, self._of(bits), 0
        if self._now.left and bits and not self._now.looks:
            self._now.wait()

    def look(self) -> None:
        """A step without prompts that the group had no part in. One with prompts shows nothing."""
        if self._now.left and self._now.looks:
            self._now.wait()

    def step(self, n_sessions: int, net: float, stake: float = CREDIT) -> None:
        """A step of n_sessions sessions, which the group brought `net` tokens beyond its cost. One in which
        it rests is ignored, unless it only looks: lookups guess then where models do. stake: as Credit.step
        takes it."""
        bits = n_sessions.bit_length()
        credit = self._now if bits == self._at else self._of(bits)
        if not credit.left or credit.looks:
            credit.step(net / n_sessions, stake)

    def memory(self) -> dict[str, int]:
        """What recall() takes after a restart: steps until it guesses, by bits of the number of sessions."""
        return {str(bits): credit.left for bits, credit in self._credits.items() if bits}

    def recall(self, memory: object) -> None:
        """Begin with what was found out before a restart."""
        found = cast(dict[str, object], memory) if isinstance(memory, dict) else {}
        for bits, left in found.items():
            if bits.isdecimal() and type(left) is int and left >= 0:
                credit = self._credits[int(bits)] = Credit(self._wait)
                credit.left, credit.looks = max(self._wait, left), left <= self._wait

    def _of(self, bits: int) -> Credit:
        credit = self._credits.get(bits)
        if credit is None:
            fewer = max(one for one in self._credits if one < bits)
            credit = self._credits[bits] = copy(self._credits[fewer])
            credit.tokens = min(0.0, credit.tokens)
        return credit
