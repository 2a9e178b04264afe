"""Keep account of what a source gained and cost, and decide whether it may go on. Pure.

One rule for all: a source that has lost more than its stake pauses until its loss is the fraction LOSS of the
tokens made since. So any source costs at most that fraction of the speed, plus its stake. There are accounts
for groups of sources, for the models in one session, for drafters on trial, and for guesses made only to see
whether they are right. They differ in stake and in unit: tokens of one session, or seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from typing import cast

# Share of all tokens that a source may lose. Twice: 1 percent more is lost; half: a source that begins to
# help pauses twice as long.
LOSS = 0.01
# Share of steps that are baselines, in which a source pauses only to time steps without it: a quarter of
# LOSS. Twice: half a percent of a group's gain is lost; half: on a machine that became quicker, a drafter's
# slowdown stays hidden for twice as long.
BASELINE_FRACTION = LOSS / 4

# Share of a source's gain that is forgotten per step. A gain counts for as many steps as a loss takes tokens
# to be made good: 100. Half: a source that gained 3 tokens a step and now loses half a token goes on for 399
# steps instead of 204; twice: lookups, whose gains are rare and large, make 21 percent fewer tokens (400M
# BF16, benchmarks.inside --every-way --prompts 40).
FORGET = LOSS


def made_good_after(lost: float) -> float:
    """Return the number of tokens after which a loss is made good: `lost` is the fraction LOSS of them."""
    return lost / LOSS


class Account:
    """The balance of one source.

    Call book() for each step in which the source worked, wait() for each step in which it paused.
    """

    __slots__ = (
        "_baseline_steps",
        "_evidence",
        "_lost",
        "_n_worked",
        "_stake",
        "allowance",
        "is_baseline",
        "net",
        "patience",
        "paused",
        "per_step",
    )

    def __init__(
        self, stake: float = 0.0, *, patience: float = 0.0, per_step: float = 0.0, baseline_steps: int = 0
    ) -> None:
        """Begin without gain or loss.

        Args:
            stake: Loss allowed before any gain, in the account's unit.
            patience: Sum of book()'s `evidence` that is needed before the source may pause.
            per_step: Maximum cost of one step while there is no gain, in the account's unit.
            baseline_steps: Steps of a baseline: a pause that only serves to time steps without the source.
                One comes at the start, others later. 0: there are no baselines.
        """
        self._stake, self.patience, self.per_step = stake, patience, per_step
        self._baseline_steps = baseline_steps
        self.paused = baseline_steps  # steps until the source may work; 0: it may now
        self.is_baseline = baseline_steps > 0  # the source pauses only to time steps without it
        self._begin()

    def _begin(self) -> None:
        self.net = 0.0  # recent gain; below 0: loss since _begin()
        self.allowance = self.per_step  # maximum cost of the next step
        self._lost = 0.0  # loss since the gain was highest
        self._evidence = 0.0
        self._n_worked = 0  # steps since the last baseline

    @property
    def is_active(self) -> bool:
        """True if the source may work in the next step."""
        return not self.paused

    @property
    def has_evidence(self) -> bool:
        """True once the steps counted give enough evidence (`patience`) to pause the source for a loss."""
        return self._evidence >= self.patience

    def wait(self) -> None:
        """Count a step in which the source paused."""
        self.paused -= 1
        if not self.paused:
            self.is_baseline = False

    def book(
        self, net: float, *, stake: float | None = None, evidence: float = 1.0, n_sessions: int = 1
    ) -> None:
        """Count a step in which the source worked.

        Args:
            net: The source's gain less its cost, in the account's unit.
            stake: Loss allowed before any gain; None: that of the account.
            evidence: Weight of the step. The source may pause once the sum of weights reaches `patience`.
            n_sessions: Sessions that share the loss: more of them shorten the pause.
        """
        self.net += net - FORGET * max(0.0, self.net)
        self._lost = max(0.0, self._lost - net)
        self.allowance = max(self.per_step, self.allowance + net)
        self._evidence += evidence
        self._n_worked += 1
        least = -self._stake if stake is None else -stake
        if self.net < least and self._evidence >= self.patience:
            self._pause(n_sessions)
        elif self._baseline_steps and self._n_worked >= self._baseline_steps / BASELINE_FRACTION:
            self.paused, self.is_baseline, self._n_worked = self._baseline_steps, True, 0

    def _pause(self, n_sessions: int) -> None:
        """Pause until the loss is only the fraction LOSS of the tokens made since; reset gain and loss.

        n_sessions is the number of sessions that make tokens in a step.
        """
        steps = math.ceil(made_good_after(self._lost) / n_sessions)
        self.paused, self.is_baseline = max(1, self._baseline_steps, steps), False
        self._begin()

    def pause_for(self, steps: int) -> None:
        """Resume a pause from before a restart: for its remaining `steps`, at least as long as a baseline."""
        self.paused = max(self._baseline_steps, steps)
        self.is_baseline = 0 < self.paused <= self._baseline_steps

    def for_more_sessions(self) -> Account:
        """Return a copy of this account, without its gain, for steps with more sessions.

        A loss is kept. A gain is not, since what helps one session may hurt sixteen.
        """
        account = copy(self)
        account.net = min(0.0, self.net)
        return account


class GroupAccount:
    """Accounts of one group of sources, for 1, 2 to 3, 4 to 7, … sessions."""

    def __init__(self, make: Callable[[], Account]) -> None:
        """Begin without gain or loss; `make` returns a new account."""
        self._make = make
        self._by_bits = {0: make()}

    def of(self, n_sessions: int) -> Account:
        """Return the account for about this number of sessions; a new one inherits losses, not gains."""
        bits = n_sessions.bit_length()
        account = self._by_bits.get(bits)
        if account is None:
            fewer = max(one for one in self._by_bits if one < bits)
            account = self._by_bits[bits] = self._by_bits[fewer].for_more_sessions()
        return account

    @property
    def gain(self) -> float:
        """Return the largest recent net gain of the accounts, in tokens per session; 0 if all have losses."""
        return max(0.0, *[account.net for account in self._by_bits.values()])

    def memory(self) -> dict[str, int]:
        """Return the remaining pauses for recall(): steps, by bit length of the number of sessions."""
        return {str(bits): account.paused for bits, account in self._by_bits.items() if bits}

    def recall(self, memory: object) -> None:
        """Resume the pauses that memory() returned before a restart. Invalid entries are ignored."""
        found = cast(dict[str, object], memory) if isinstance(memory, dict) else {}
        for bits, steps in found.items():
            if bits.isdecimal() and type(steps) is int and steps >= 0:
                self._by_bits[int(bits)] = account = self._make()
                account.pause_for(steps)
