"""Do guesses of models bring one session more than they cost it? Counted in tokens. Pure.

A hard text misleads what sessions before it taught: guesses that look good are wrong, each for a row and for
the time of making it. So those made for a step may cost a session what models have brought it so far, and
STAKE. And where a drafter's guesses are hardly ever right, the lead still takes in its messages and looks at
its guesses. So models rest in a session that they cost more than they bring, and are asked again later, for
the text may have changed. Drafters on the lead's cores have a credit over all sessions, too (credit.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.engine.proposer import Planned, TimedStep
from server.estimators import Median, Ratio
from server.speculation.gating.credit import LOSS

# Of the past, per step: about the last 33 steps count. Off by two: half, one unlucky line ends a good draft;
# twice, a hard reply pays for 48 steps until its drafters rest.
KEEP = 0.97
# Steps with guesses until the balance of a session counts, alone and among several, each of which has few
# guesses in a step. Alone: of 178 replies, 400M and bundled, 7 and 23 are below 0.95 of no drafts with 12, 4
# and 14 with 5, none and 14 with 3, at which the bundled pair is 1 percent slower in all (benchmarks.inside
# --every-way). Among several, 12: eight of 400M make 1.67 of plain steps instead of 1.84; 48: as many.
TRIED, TRIED_AMONG = 3, 24
# Steps with messages after which it counts in any case: what is lost by then, at 5 percent a step, is half a
# step. Off by two, simulated with the bundled pair: 24, 7 of 40 hard replies below 0.95 of no drafts instead
# of 1; 5, a drafter 50 ms away brings a fifth less, since its first guesses come late.
HEARD = 12

# Tokens that guesses made for one step may cost a session that they have brought nothing. 2: the slowest of
# 187 replies of the bundled pair is at 0.90 of no drafts instead of 0.94, 11 are below 0.95 instead of 3; 1:
# all are 3 percent slower; without a bound 0.77, 14 and 3 percent faster (benchmarks.inside --every-way).
STAKE = 1.5

LATEST = 31  # steps of a kind. Half: their scatter shows; twice: a change is seen after 31 steps, not 16
# Steps of a kind until it counts: a process's first ones take up to ten times as long. Half: one of them
# counts whole; twice: a bad drafter costs ten steps more.
KNOWN = 5
# Of a plain step, for messages, as long as that is not known: what they took on an H100 with a drafter on its
# host's CPU (0.2 to 0.3 of 4.4 ms, ADR 8). With 0.02, 16 cases of benchmarks.clocked, in which it stays
# unknown, are 0.4 percent slower, 24 others 0.2 percent faster; at 0 a drafter that is never right goes on.
ASSUMED = 0.05


NO_COSTS = {False: 0.0, True: 0.0}


@dataclass(slots=True)
class _Outside:
    """Seconds outside the decode for each session of a step: without drafters, with them, with guesses."""

    quiet: Median = field(default_factory=lambda: Median(LATEST))
    told: Median = field(default_factory=lambda: Median(LATEST))
    guessing: Median = field(default_factory=lambda: Median(LATEST))

    def more_s(self, kind: Median) -> float | None:
        """Than a quiet step; None until both are known."""
        known = min(kind.count, self.quiet.count) >= KNOWN
        return max(0.0, kind.value - self.quiet.value) if known else None


class Overhead:
    """Seconds that drafters take from a step outside its decode, for each session that they have: messages,
    choosing, and what verifying takes in Python. By the number of sessions, in powers of two, from steps with
    drafters and without."""

    def __init__(self) -> None:
        self._bands: dict[int, _Outside] = {}  # by the number of bits of the number of sessions
        # seconds, by whether the session has guesses; None: not known
        self._costs: Mapping[bool, float | None] = {False: None, True: None}

    def observe(self, planned: Planned, step: TimedStep, n_told: int) -> bool:
        """A step without prompts. n_told: sessions that drafters have. Returns whether any had guesses."""
        n_sessions, guessing = step.n_sessions, any(planned.proposals)
        band = self._bands.get(n_sessions.bit_length())
        if band is None:
            band = self._bands[n_sessions.bit_length()] = _Outside()
        if n_told or not guessing:  # else they are guesses of others
            outside_s = max(0.0, step.step_s - step.decode_s - planned.spent_s)
            kind = band.guessing if guessing else band.told if n_told else band.quiet
            kind.observe(outside_s / n_sessions)
        if not n_told:
            self._costs = NO_COSTS
            return guessing
        told_s, guessing_s = band.more_s(band.told), band.more_s(band.guessing)
        share = n_sessions / n_told
        self._costs = {False: told_s and share * told_s, True: guessing_s and share * guessing_s}
        return guessing

    def tokens(self, plain_rate: float, *, guessing: bool) -> float:
        """What a session loses in a step like the latest one, at plain_rate tokens per second; ASSUMED while
        that is not known. guessing: with guesses."""
        seconds = self._costs[guessing]
        return ASSUMED if seconds is None else seconds * plain_rate


class Balance:
    """Of one session, told step by step. After models have lost something they rest until that is LOSS of the
    tokens of all sessions.

    allowance: tokens that the guesses made for the next step may cost the session."""

    def __init__(self) -> None:
        self.resting = False
        self.allowance = STAKE
        self._net = Ratio(KEEP)
        self._lost = 0.0  # tokens, since they went on
        self._guessed = 0.0  # steps with guesses; one alone says as much as several among others
        self._n_heard = self._left = 0

    @property
    def counts(self) -> bool:
        """True once it decides whether they rest."""
        return self._guessed >= TRIED_AMONG or self._n_heard >= HEARD

    def rest(self) -> None:
        """A step in which they rest."""
        self._left -= 1
        if self._left <= 0:
            self.resting, self.allowance, self._net, self._lost = False, STAKE, Ratio(KEEP), 0.0
            self._guessed, self._n_heard = 0.0, 0

    def step(
        self, n_accepted: float, n_lost: float, *, guessed: bool, heard: bool, n_sessions: int = 1
    ) -> None:
        """A step in which models guessed, or were heard: tokens that they brought, and tokens that plain
        steps would have made in the time they took. At the rate with guesses a text that is harder to guess
        than the one before would have them rest although they help. guessed: their guesses took time;
        heard: a drafter of the session has sent guesses."""
        self._net.observe(n_accepted - n_lost, 1.0)
        self._lost = max(0.0, self._lost + n_lost - n_accepted)
        self.allowance = max(STAKE, self.allowance + n_accepted - n_lost)
        self._n_heard += heard
        if guessed:
            self._guessed += TRIED_AMONG / TRIED if n_sessions == 1 else 1
        if self.counts and self._net.value < 0.0:
            self.resting, self._left = True, int(self._lost / (LOSS * n_sessions))
