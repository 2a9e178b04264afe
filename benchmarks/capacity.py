"""How many leads one Redis carries, from what was measured. Pure.

Each budget is a second's: processor seconds of the server's one thread that runs commands, bytes that come
in, bytes that go out. n leads, each with d drafters of its own and m messages a second with them, take of it

    base + member (1 + d) n + pair d n² + (message + byte s) m n

base: the server alone. member: a process of either role that is there, whatever it says. pair: a lead and a
drafter that look at each other's card four times a second, as all of one pool do. message: one on its way,
byte: each of its s bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

TOKEN_BYTES = 4  # of one token in an Open


@dataclass(frozen=True, slots=True)
class Usage:
    """What a server has taken since it began. n_added: entries added to streams; n_reads: reads of these."""

    cpu_s: float
    bytes_in: int
    bytes_out: int
    n_added: int
    n_reads: int

    def since(self, before: Usage) -> Usage:
        return Usage(
            self.cpu_s - before.cpu_s,
            self.bytes_in - before.bytes_in,
            self.bytes_out - before.bytes_out,
            self.n_added - before.n_added,
            self.n_reads - before.n_reads,
        )


def usage(info: Mapping[str, Any]) -> Usage:
    """From what INFO says of cpu, stats and commandstats."""
    calls = {name: info.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("xadd", "xread")}
    cpu_s = info["used_cpu_user"] + info["used_cpu_sys"]
    net = info["total_net_input_bytes"], info["total_net_output_bytes"]
    return Usage(cpu_s, *net, calls["xadd"], calls["xread"])


@dataclass(frozen=True, slots=True)
class Load:
    """What things take of a budget, as above."""

    base: float
    member: float
    pair: float
    message: float
    byte: float = 0.0

    def of(self, n_leads: float, lead: Lead) -> float:
        """What n_leads leads take."""
        return self.base + n_leads * self._each(lead) + n_leads**2 * self.pair * lead.n_drafters

    def most_leads(self, lead: Lead, budget: float) -> int:
        """How many do not take more than the budget."""
        left, each, square = budget - self.base, self._each(lead), self.pair * lead.n_drafters
        if left <= 0:
            return 0
        # The positive root of square n² + each n = left, in a form that a square of 0 does not break
        return math.floor(2 * left / (each + math.sqrt(each**2 + 4 * square * left)) * (1 + 1e-12))

    def _each(self, lead: Lead) -> float:
        return self.member * (1 + lead.n_drafters) + (self.message + self.byte * lead.size) * lead.messages


@dataclass(frozen=True, slots=True)
class Lead:
    """One of many alike. tokens, messages: a second, messages with all drafters of all its sessions; size:
    mean bytes of a message; n_drafters: processes that come with it."""

    tokens: float
    messages: float
    size: float
    n_drafters: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Between one lead and one drafter that has all its sessions. tokens: that the lead commits in a second.
    Others: messages and their bytes, for each token, and for each reply without its prompt's tokens."""

    tokens: float
    token_messages: float
    token_bytes: float
    reply_messages: float
    reply_bytes: float

    def lead(self, n_prompt: int, n_tokens: int, *, links: int, n_drafters: int) -> Lead:
        """A lead as busy as this, with replies of n_tokens to prompts of n_prompt tokens and `links` drafters
        of each session: as many times the messages, since each drafts by itself."""
        messages = self.token_messages + self.reply_messages / n_tokens
        once = self.reply_bytes + TOKEN_BYTES * n_prompt
        size = (self.token_bytes + once / n_tokens) / messages
        return Lead(self.tokens, links * self.tokens * messages, size, n_drafters)


def shares(seen: Sequence[tuple[int, int, float]]) -> tuple[float, float, float]:
    """base, member and pair from what silent processes took of a budget in a second: leads, drafters, what.
    By least squares, none below 0: the best fit of some of the terms, the others 0."""
    rows = np.array([(1, leads + drafters, leads * drafters) for leads, drafters, _ in seen], float)
    taken = np.array([what for *_, what in seen])
    fits = [np.zeros(3)]
    for some in (list(chosen) for n in (1, 2, 3) for chosen in combinations(range(3), n)):
        fit = np.zeros(3)
        fit[some] = np.linalg.lstsq(rows[:, some], taken, rcond=None)[0]
        if fit.min() >= 0:
            fits.append(fit)
    base, member, pair = (float(one) for one in min(fits, key=lambda fit: np.sum((rows @ fit - taken) ** 2)))
    return base, member, pair
