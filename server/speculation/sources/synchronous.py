"""Drafting between two steps with a model in the lead, for each session as deep as it pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from server.engine.proposer import NOTHING, Ask, Proposal
from server.sampling.draft_token import DraftGuess
from server.sampling.draw import Distribution
from server.speculation.gating.acceptance import Acceptance
from server.speculation.gating.gate import reachable, worth_drafting
from server.speculation.gating.widths import Offered
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from server.speculation.speculated import Speculated

SOURCE = "draft"
PROBE_SHARE = 0.005  # of the time, for guesses that do not seem to pay: their rates would stay unknown else


@dataclass(slots=True)
class _StepPath:
    """The guesses for one session in this step; sure: the probability that all of them are right."""

    limit: int
    acceptance: Acceptance
    tokens: list[int] = field(default_factory=list[int])
    drafted: list[Distribution] = field(default_factory=list[Distribution])
    sure: float = 1.0


class Synchronous:
    """Grafts the guesses of a DraftModel into the sessions' trees."""

    def __init__(self, inline: DraftModel, policy: Policy, clock: Callable[[], float]) -> None:
        self.inline = inline
        self._policy = policy
        self._clock = clock
        self._paths: dict[int, _StepPath] = {}
        self._saved_s = 0.0  # by PROBE_SHARE

    def draft(
        self,
        asks: Sequence[Ask],
        sessions: Mapping[int, Speculated],
        n_rows: int,
        curve: Sequence[float],
        rate: float,
    ) -> float:
        """Guess for all these sessions at once, as far as it brings more than `rate`, in tokens per second,
        or the most that these texts can reach. Returns the seconds that took."""
        self._paths = {}
        for ask in asks:
            speculated = sessions[ask.session]
            if speculated.allows(SOURCE):
                self.inline.follow(speculated.session)
                self._paths[ask.session] = _StepPath(ask.limit, speculated.acceptance)
        rows, spent_s = n_rows, 0.0
        rate = min(rate, self._reachable(curve, n_rows))
        going = self._going(curve, rows, rate)
        if self._paths and not going and self._saved_s >= self.inline.td.value:
            going, self._saved_s = list(self._paths), 0.0
        self._saved_s += PROBE_SHARE * curve[min(n_rows, len(curve) - 1)]
        while going:
            began = self._clock()
            guesses = self.inline.guess(going, second=self._policy.leaves > 1)
            spent_s += self._clock() - began
            for session, guess in zip(going, guesses, strict=True):
                self._graft(session, guess, sessions[session])
                rows += guess is not None
            going = self._going(curve, rows, rate)
        return spent_s

    def expected(self, ask: Ask, speculated: Speculated) -> float:
        """How many of its guesses would be right, if it drafted up to the session's limit."""
        acceptance = speculated.acceptance.mean(SOURCE) if speculated.allows(SOURCE) else 0.0
        return sum(acceptance**k for k in range(1, ask.limit + 1))

    def outlook(self, asks: Sequence[Ask], sessions: Mapping[int, Speculated], rate: float) -> Offered:
        """What it would probably offer if rows were free."""
        probabilities, deepest, td_s = list[float](), 0, self.inline.td.value
        least = rate * td_s / max(1, len(asks))
        for ask in asks:
            speculated, depth = sessions[ask.session], 0
            acceptance = speculated.acceptance.mean(SOURCE) if speculated.allows(SOURCE) else 0.0
            while depth < ask.limit and acceptance ** (depth + 1) > least:
                depth += 1
                probabilities.append(acceptance**depth)
            deepest = max(deepest, depth)
        return Offered(sorted(probabilities, reverse=True), deepest * td_s)

    def chain(self, session: int) -> Proposal:
        """The guesses for the session, with the distributions they were sampled from."""
        path = self._paths.get(session)
        if path is None or not path.tokens:
            return NOTHING
        n = len(path.tokens)
        return Proposal(tuple(path.tokens), tuple(range(-1, n - 1)), (SOURCE,) * n, tuple(path.drafted))

    def _reachable(self, curve: Sequence[float], n_rows: int) -> float:
        paths = self._paths.values()
        if not paths:
            return math.inf
        acceptances = [path.acceptance.expected(SOURCE) for path in paths]
        limit = max(path.limit for path in paths)
        return reachable(curve, n_rows, acceptances, limit, self.inline.td.value)

    def _going(self, curve: Sequence[float], rows: int, rate: float) -> list[int]:
        """The sessions for which another guess pays."""
        if not self._paths:
            return []
        td_s = self.inline.td.value / len(self._paths)
        going: list[int] = []
        for session, path in self._paths.items():
            left = path.limit - len(path.tokens)
            reach = curve[: rows + left + 1]
            if left > 0 and (
                not self._policy.gate
                or worth_drafting(reach, rows, path.sure, path.acceptance.outlook(SOURCE), td_s, rate)
            ):
                going.append(session)
        return going

    def _graft(self, session: int, guess: DraftGuess | None, speculated: Speculated) -> None:
        path = self._paths[session]
        if guess is None:
            path.limit = 0  # the draft model cannot go on
            return
        confidence = int(255 * guess.confidence)
        speculated.tree.branch(path.tokens, SOURCE, guess.token, confidence)
        if guess.second is not None:
            second = int(255 * guess.second_confidence)
            speculated.tree.branch(path.tokens, SOURCE, guess.second, second)
        path.tokens.append(guess.token)
        if guess.drafted is not None:
            path.drafted.append(guess.drafted)
        path.sure *= path.acceptance.probability(SOURCE, confidence)
