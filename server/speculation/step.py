"""The speculator's plan of a step, and what the ledger needs to learn from the finished step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from server.engine.proposer import Plan, Upcoming
from server.sampling.draw import Distribution
from server.speculation.sources.drafter_record import DrafterRecord

LOOKUP, GRAMMAR, PREDICTION = "lookup", "grammar", "prediction"
NO_MODEL = LOOKUP, GRAMMAR, PREDICTION  # sources that take no model's time


class Guessers(NamedTuple):
    """Sources that may guess in a step, and drafters to pause or resume before it."""

    lookup: bool = False
    inline: bool = False  # the model in the lead
    drafters: bool = False  # some drafter has a session
    may_model: bool = False  # models may guess in sessions whose account allows it
    pauses: Sequence[tuple[DrafterRecord, str]] = ()  # drafters to pause, each with the reason; "": resume

    @property
    def models(self) -> bool:
        """True if the model in the lead or a drafter may guess."""
        return self.inline or self.drafters

    @property
    def nobody(self) -> bool:
        """True if no source may guess."""
        return not (self.lookup or self.inline or self.drafters)


NOBODY, NO_STEP = Guessers(), Upcoming(0)


@dataclass(slots=True)
class DraftPath:
    """Guesses of a model in the lead for one session in one step."""

    limit: int  # guesses that the session can afford
    most: int  # maximum guesses by the request and the model, whether the session can afford them or not
    acceptance: float  # probability that a next guess is right if those before it are
    # for sure and for unsure guesses: their share of all guesses, and the expected number of right ones among
    # 0, 1, … of them in a row. The more frequent kind comes first. Fixed within a step
    prospects: Sequence[tuple[float, Sequence[float]]]
    tokens: list[int] = field(default_factory=list[int])
    drafted: list[Distribution] = field(default_factory=list[Distribution])
    sure: float = 1.0  # probability that all guesses are right
    is_probe: bool = False  # one guess, made only to see whether it is right


@dataclass(slots=True)
class Drafting:
    """State of the model in the lead during one step."""

    source: str
    td_s: float  # seconds of a round of guesses, one for each session
    gate: bool  # False: guesses are made whether they pay or not
    brought: float  # the model's recent gain less its cost, in tokens per session
    behind_s: Callable[[int], float]  # seconds to evaluate a session's tokens that the model lacks
    seconds: Sequence[float]  # by rows of the step, including rows evaluated again after wrong guesses
    n_rows: int = 1  # rows of the step without guesses
    tries: bool = False  # guess once in any case, since nothing is known of this text
    may_probe: bool = False  # the model may guess although that does not seem to pay
    rate: float = math.inf  # value of time in tokens per second, at most what these texts can reach
    paths: dict[int, DraftPath] = field(default_factory=dict[int, DraftPath])  # by session
    # paths to guess for during the decode
    beside: dict[int, DraftPath] = field(default_factory=dict[int, DraftPath])
    undrafted_rate: float = 0.0  # tokens per second of undrafted steps; 0: unknown
    n_guesses: int = 0  # guesses so far
    has_guessed: bool = False  # the model was asked for a guess between two steps
    probe_s: float = 0.0  # seconds of guesses that did not seem to pay
    n_read: int = 0  # tokens that the model has evaluated to catch up with sessions


@dataclass(slots=True)
class DraftPlan(Plan):
    """A plan, with what the ledger needs to learn from its step."""

    step: Upcoming = NO_STEP  # the step to which the plan belongs
    n_guesses: int = 0  # verified guesses
    rows: int = 0  # rows of a step that only decodes, padding included; 0: it has other rows
    is_wider: bool | None = None  # a wider step would be best if changes of width were free; None: undecided
    guessers: Guessers = NOBODY
    working: Sequence[str] = ()  # machines whose drafters have a session
    charges: Mapping[int, float] | None = None  # tokens that models' guesses cost, by session
    guess_cost: float = 0.0  # cost of each verified guess: the tokens that undrafted steps make in its time
    lookup_s: float = 0.0  # seconds of lookups
    drafting: Drafting | None = None  # what the model in the lead did
    is_stable: bool = False  # the step's width does not depend on guesses


def add_charges(
    one: Mapping[int, float] | None, other: Mapping[int, float] | None
) -> Mapping[int, float] | None:
    """Add two maps of what guesses cost, in tokens by session. None and an empty map mean no costs."""
    if not (one and other):
        return one or other
    return {id: one.get(id, 0.0) + other.get(id, 0.0) for id in {*one, *other}}
