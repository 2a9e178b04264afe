"""What the speculator plans for a step, and sees again when the step is over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from server.engine.proposer import Plan, Upcoming
from server.sampling.draw import Distribution
from server.speculation.hits import HitRates, Outlook
from server.speculation.sources.drafter_record import DrafterRecord

LOOKUP, GRAMMAR, PREDICTION = "lookup", "grammar", "prediction"
NO_MODEL = LOOKUP, GRAMMAR, PREDICTION  # sources that take no model's time


class Pause(NamedTuple):
    """Drafters that shall have no session, and why; or may have some, if `reason` is empty."""

    drafters: Sequence[DrafterRecord]
    reason: str
    quiet: bool  # this happens often


class Guessers(NamedTuple):
    """Who may guess in a step."""

    lookup: bool = False
    inline: bool = False  # the model in the lead
    drafters: bool = False  # some drafter has a session
    may_model: bool = False  # some model may guess in sessions whose account lets it
    pauses: Sequence[Pause] = ()

    @property
    def models(self) -> bool:
        """Whether some model guesses."""
        return self.inline or self.drafters

    @property
    def nobody(self) -> bool:
        """Whether nobody guesses."""
        return not (self.lookup or self.inline or self.drafters)


NOBODY, NO_STEP = Guessers(), Upcoming(0)


@dataclass(slots=True)
class DraftPath:
    """The guesses of a model in the lead for one session in one step."""

    limit: int  # guesses that the session's account affords
    most: int  # guesses that there may be apart from that
    hits: HitRates
    outlook: Sequence[Outlook]  # of every next guess: nothing is learned before the step's end
    gains: Sequence[Sequence[float]]  # for each outlook, what 0, 1, … guesses bring
    tokens: list[int] = field(default_factory=list[int])
    drafted: list[Distribution] = field(default_factory=list[Distribution])
    sure: float = 1.0  # the probability that all guesses are right
    is_probe: bool = False  # one guess is made only to see whether it is right


@dataclass(slots=True)
class Drafting:
    """The model in the lead in one step."""

    source: str
    td_s: float  # seconds of a guess, for all sessions at once
    is_beside: bool  # it can also read and guess during the target's decode
    brought: float  # tokens of each session that it brought of late, beyond what it cost
    behind: Callable[[int], int]  # tokens of a session to evaluate before its next guess
    behind_s: Callable[[int], float]  # seconds that these take
    seconds: Sequence[float]  # of the step by rows, with what wrong guesses have evaluated again
    n_rows: int = 1  # of the step without guesses
    tries: bool = False  # it guesses once in any case, since nothing is known of this text
    may_probe: bool = False  # it may guess although that does not seem to pay
    rate: float = math.inf  # tokens per second that time is worth: at most what these texts can reach
    rested: bool = True  # it did not guess for the step before
    paths: dict[int, DraftPath] = field(default_factory=dict[int, DraftPath])  # by session
    beside: dict[int, DraftPath] = field(
        default_factory=dict[int, DraftPath]
    )  # to guess for during the decode
    plain_rate: float = 0.0  # tokens per second of steps without guesses; 0: not known
    n_guesses: int = 0  # so far
    n_guessed: int = 0  # sessions with guesses
    probe_s: float = 0.0  # seconds that were spent although guesses do not seem to pay
    is_read: bool = False  # what is behind was looked at
    has_asked: bool = False  # the model was asked for guesses


class Request(NamedTuple):
    """What the model in the lead shall do next for a plan that is not finished."""

    guess: Sequence[int] = ()  # sessions for each of which it makes one guess
    probe: Sequence[int] = ()  # those whose guess is only to see whether it is right
    read: Sequence[int] = ()  # sessions whose tokens it evaluates
    is_reading: bool = False  # it evaluates tokens, if any, and guesses later
    is_beside: bool = False  # it guesses during the target's decode
    is_last_resort: bool = False  # it guesses although no guess pays
    unpaid: Sequence[int] = ()  # those of `read` for which no guess seems to pay


@dataclass(slots=True)
class DraftPlan(Plan):
    """A plan with what learning from its step needs."""

    step: Upcoming = NO_STEP  # what was planned for
    n_guesses: int = 0  # that are verified
    rows: int = 0  # of a step that only decodes these, with padding; 0: it has others
    is_wider: bool | None = None  # a wider step would be best if no change cost anything; None: nobody chose
    guessers: Guessers = NOBODY
    working: Sequence[str] = ()  # machines whose drafters have a session
    charges: Mapping[int, float] | None = None  # tokens by session, for models' guesses
    guess_cost: float = 0.0  # tokens that plain steps would make in the time of each verified guess
    looked_s: float = 0.0  # seconds that lookups took
    drafting: Drafting | None = None  # what the model in the lead did
    is_stable: bool = False  # the step has its width whatever is guessed


def add_charges(one: Mapping[int, float] | None, other: Mapping[int, float]) -> Mapping[int, float] | None:
    """Return the charges of both, by session."""
    if not (one and other):
        return one or other
    return {id: one.get(id, 0.0) + other.get(id, 0.0) for id in {*one, *other}}
