"""What a source brought, less what it cost, and whether it may go on. Pure.

One rule for all: a source that has lost more than its stake pauses until its loss is LOSS of the tokens that
were made since. So whatever a source is, it costs LOSS of the speed at most, and its stake. An account is
kept for a group of sources, for the models in one session, for a drafter that joins, and for guesses that do
not seem to pay; the terms differ, the rule does not. The unit is the token of one session, or the second.
"""

from __future__ import annotations

import math
from copy import copy
from typing import NamedTuple, cast

# Share of all tokens that a source may lose. Twice: 1 percent more is lost; half: a source that begins to
# help pauses twice as long.
LOSS = 0.01
# How often a pause doubles if the source gained nothing since the one before: a try also costs what is not
# counted, such as a prompt that is read. 2: a bad drafter is tried twice as often; 4: one that begins to help
# may pause for 8000 steps.
MAX_DOUBLED = 3


class Terms(NamedTuple):
    """What is agreed with a source."""

    stake: float = 0.0  # what it may lose before it has gained anything
    forget: float = 0.0  # share of its gain that is forgotten in each step
    patience: float = 0.0  # evidence after which the account may pause the source
    per_step: float = 0.0  # what one step may cost a source that has gained nothing
    warm_up: int = 0  # steps without the source, at first and again now and then, to see what they take
    look_share: float = 1.0  # share of the steps that are such
    doubles: bool = False  # pauses double while it gains nothing


class Account:
    """The balance of one source.

    Told of each step: book() where the source worked, wait() where it did not.
    """

    __slots__ = (
        "_evidence",
        "_lost",
        "_n_pauses",
        "_n_worked",
        "_terms",
        "allowance",
        "is_look",
        "net",
        "paused",
    )

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.paused = terms.warm_up  # steps until the source may work again; 0: it may
        self.is_look = terms.warm_up > 0  # it pauses only to see what steps take without it
        self._n_pauses = 0  # in a row, between which it gained nothing
        self._begin()

    def _begin(self) -> None:
        self.net = 0.0  # what it gained of late, or lost since it began
        self.allowance = self._terms.per_step  # what the next step may cost it
        self._lost = 0.0  # since its gain was largest
        self._evidence = 0.0
        self._n_worked = 0  # steps since the last look

    @property
    def is_active(self) -> bool:
        """Whether the source may work in the next step."""
        return not self.paused

    @property
    def has_evidence(self) -> bool:
        """Whether the account may pause the source."""
        return self._evidence >= self._terms.patience

    def wait(self) -> None:
        """Count a step in which the source paused."""
        self.paused -= 1
        if not self.paused:
            self.is_look = False

    def book(
        self, net: float, *, stake: float | None = None, evidence: float = 1.0, n_sessions: int = 1
    ) -> None:
        """Count a step in which the source worked.

        Args:
            net: What it gained, less what it cost.
            stake: What it may lose before it has gained anything, if that is not what the terms say.
            evidence: How much the step says of the source; at Terms.patience it may pause.
            n_sessions: Sessions that share a loss: a pause is as much shorter.
        """
        terms, gained = self._terms, self.net
        self.net += net - terms.forget * gained if gained > 0.0 else net
        self._lost = max(0.0, self._lost - net)
        self.allowance = max(terms.per_step, self.allowance + net)
        self._evidence += evidence
        self._n_worked += 1
        if gained > terms.stake:
            self._n_pauses = 0
        least = -terms.stake if stake is None else -stake
        if self.net < least and self._evidence >= terms.patience:
            self._pause(n_sessions)
        elif terms.warm_up and self._n_worked >= terms.warm_up / terms.look_share:
            self.paused, self.is_look, self._n_worked = terms.warm_up, True, 0

    def _pause(self, n_sessions: int) -> None:
        """Pause until the loss is LOSS of the tokens made since, and begin anew then."""
        doubled = 1 << min(self._n_pauses, MAX_DOUBLED) if self._terms.doubles else 1
        steps = math.ceil(doubled * self._lost / (LOSS * n_sessions))
        self.paused, self.is_look = max(1, self._terms.warm_up, steps), False
        self._n_pauses += 1
        self._begin()

    def pause_for(self, steps: int) -> None:
        """Pause for as many steps as was found out before a restart."""
        self.paused = max(self._terms.warm_up, steps)
        self.is_look = 0 < self.paused <= self._terms.warm_up

    def for_more_sessions(self) -> Account:
        """Return an account for more sessions, which begins with this one's losses but not with its gains:
        what helps one session may hurt sixteen."""
        account = copy(self)
        account.net = min(0.0, self.net)
        return account


class GroupAccount:
    """The accounts of one group of sources, by powers of two of the number of sessions."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._by_bits = {0: Account(terms)}

    def of(self, n_sessions: int) -> Account:
        """Return the account for about this number of sessions."""
        bits = n_sessions.bit_length()
        account = self._by_bits.get(bits)
        if account is None:
            fewer = max(one for one in self._by_bits if one < bits)
            account = self._by_bits[bits] = self._by_bits[fewer].for_more_sessions()
        return account

    def memory(self) -> dict[str, int]:
        """Return what recall() takes after a restart: steps that each account still pauses."""
        return {str(bits): account.paused for bits, account in self._by_bits.items() if bits}

    def recall(self, memory: object) -> None:
        """Begin with what was found out before a restart."""
        found = cast(dict[str, object], memory) if isinstance(memory, dict) else {}
        for bits, steps in found.items():
            if bits.isdecimal() and type(steps) is int and steps >= 0:
                self._by_bits[int(bits)] = account = Account(self._terms)
                account.pause_for(steps)
