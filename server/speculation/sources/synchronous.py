"""Drafting between two steps with a model in the lead, for each session as deep as it pays."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from server.engine.proposer import NOTHING, Ask, OpenedSession, Proposal, TimedStep
from server.estimators import Median
from server.sampling.draft_token import DraftGuess
from server.sampling.draw import Distribution
from server.speculation.gating.acceptance import Acceptance, Outlook
from server.speculation.gating.gate import affordable, reachable, worth, worth_drafting
from server.speculation.gating.pricing import StepPrice
from server.speculation.gating.widths import PLAIN, Widths
from server.speculation.policy import Policy
from server.speculation.speculated import Speculated

# Of the time, for guesses that do not seem to pay: their rates would stay unknown else. Off by two: at most
# that share of the speed, or rates that are known half as soon. In a session alone they are made in any case
# until its balance counts: a first text that is hard to guess would bar a draft that pays for others.
PROBE_SHARE = 0.005


class InlineModel(Protocol):
    """What guesses between two steps, for the engine thread only; never raises.

    source: the name of its guesses. most: guesses of a session in one step. td: seconds of guess() between
    two steps. beside: it can also read and guess during the target's decode, which takes hardly longer then.
    """

    source: str
    most: int
    td: Median
    beside: bool

    def rehearse(self) -> None:
        """Learn what a guess takes, before the first request, on the thread that will guess. Else the first
        guess tells, which is slower than all others, and what seems slow is hardly tried."""
        ...

    def follow(self, session: OpenedSession, ask: Ask) -> None:
        """Begin a path after the session's committed tokens."""
        ...

    def behind(self, session: int) -> int:
        """Tokens to evaluate before the decode that makes the next guess."""
        ...

    def behind_s(self, session: int) -> float:
        """Seconds that these take, as far as that is known."""
        ...

    def read(self, session: int) -> None:
        """Evaluate what is behind: now, or during the target's next decode."""
        ...

    def guess(self, sessions: Sequence[int], *, second: bool, timed: bool = True) -> list[DraftGuess | None]:
        """Append one guess to each path. None where the model cannot go on. second: with a runner-up. timed:
        between two steps, so that td may learn from it."""
        ...

    def overlap(self, work: Callable[[], None]) -> None:
        """Call `work` before each guess, or while a GPU makes it."""
        ...

    def close(self, session: int, *, keep: bool) -> None:
        """The session ended. keep: the conversation may go on. Unknown sessions are ignored."""
        ...


@dataclass(slots=True)
class _StepPath:
    """The guesses for one session in this step. limit: how many its allowance affords; most: how many there
    may be apart from that. outlook: of every next guess, since nothing is learned before the step's end.
    sure: the probability that all guesses are right. watched: no affordable number of guesses pays, a larger
    one would; so one guess is made, to see whether it is right."""

    limit: int
    most: int
    acceptance: Acceptance
    outlook: Sequence[Outlook]
    tokens: list[int] = field(default_factory=list[int])
    drafted: list[Distribution] = field(default_factory=list[Distribution])
    sure: float = 1.0
    watched: bool = False


class Synchronous:
    """Grafts the guesses of a model in the lead into the sessions' trees."""

    def __init__(
        self, inline: InlineModel, policy: Policy, clock: Callable[[], float], brought: Callable[[], float]
    ) -> None:
        """brought: tells the tokens of each session that guesses brought of late, beyond what they cost."""
        self.inline = inline
        self._brought = brought
        self._policy = policy
        self._clock = clock
        self._paths: dict[int, _StepPath] = {}
        self._saved_s = 0.0  # by PROBE_SHARE
        self._watching: dict[int, _StepPath] = {}  # to be guessed for once during the target's decode
        self._worth = 0.0  # tokens per second of plain steps
        self._tries = False  # whether this step has a guess in any case
        self._n_guessed = 0  # sessions with guesses in this step
        self._is_stable = False  # whether this step has its width in any case

    def draft(
        self,
        asks: Sequence[Ask],
        sessions: Mapping[int, Speculated],
        n_rows: int,
        n_sessions: int,
        curve: Sequence[float],
        rate: float,
    ) -> float:
        """Guess for all these sessions at once, as far as it brings more than `rate`, in tokens per second,
        or the most that these texts can reach. Returns the seconds that took."""
        rested = not self._n_guessed
        self._paths, self._watching, self._n_guessed = {}, {}, 0
        self._tries = n_sessions == 1 and not all(sessions[ask.session].balance.counts for ask in asks)
        self._is_stable = any(
            sessions[ask.session].session.bounds.exactness == "width-stable" for ask in asks
        )
        plain_s = curve[min(n_rows, len(curve) - 1)]
        saved_s, self._worth = PROBE_SHARE * plain_s, n_sessions / plain_s if plain_s else 0.0
        for ask in asks:
            speculated = sessions[ask.session]
            if speculated.allows(self.inline.source):
                self.inline.follow(speculated.session, ask)
                acceptance, most = speculated.acceptance, min(ask.limit, self.inline.most)
                allowance = speculated.balance.allowance if self._policy.gate else math.inf
                limit = affordable(curve, n_rows, most, self.inline.td.value, allowance)
                outlook = acceptance.outlook(self.inline.source)
                self._paths[ask.session] = _StepPath(limit, most, acceptance, outlook)
        rate = min(rate, self._reachable(curve, n_rows))
        spent_s = self._catch_up(curve, n_rows, n_sessions, rate) if self._policy.gate else 0.0
        rows, going = n_rows, self._going(curve, n_rows, rate)
        if self._paths and not going and self._may_probe(self.inline.td.value):
            going, self._saved_s = list(self._paths), 0.0
            if self.inline.beside:
                going, self._watching = [], self._watching | self._paths
            elif rested:
                self.inline.td.restart()  # the time of its latest guesses may have been disturbed
        self._saved_s += saved_s
        self._n_guessed = len(going)
        while going:
            took_s, n_guesses = self._guess(going, sessions)
            spent_s, rows = spent_s + took_s, rows + n_guesses
            going = self._going(curve, rows, rate)
        return spent_s

    def watch(self, sessions: Mapping[int, Speculated]) -> None:
        """While the target's decode runs: guess once for the sessions of this step whose guesses had no row,
        to see whether it is right."""
        if self._watching:
            watching, self._watching = self._watching, {}
            for path in watching.values():
                path.watched = True
            self._paths |= watching
            self._guess(list(watching), sessions, timed=False)

    def _guess(
        self, going: Sequence[int], sessions: Mapping[int, Speculated], *, timed: bool = True
    ) -> tuple[float, int]:
        """Guess once more for these sessions, and charge them. Returns the seconds that took, and the number
        of guesses. timed: as guess() takes it."""
        began = self._clock()
        guesses = self.inline.guess(going, second=self._policy.leaves > 1, timed=timed)
        took_s = self._clock() - began
        for session, guess in zip(going, guesses, strict=True):
            self._graft(session, guess, sessions[session])
            sessions[session].n_lost += self._worth * took_s / len(going)
        return took_s, sum(guess is not None for guess in guesses)

    def _catch_up(self, curve: Sequence[float], n_rows: int, n_sessions: int, rate: float) -> float:
        """Let the draft model evaluate what it has not seen of each session for which a guess pays then.
        Returns the seconds that took. A session whose tokens are still to be evaluated has no guesses in this
        step.
        """
        late = sorted(filter(self.inline.behind, self._paths), key=self.inline.behind)
        if not late:
            return 0.0
        began, plain_s = self._clock(), curve[min(n_rows, len(curve) - 1)]
        left_s = math.inf if n_sessions == 1 else self._brought() * plain_s
        paying = self._paying(late, left_s, lambda path, n: self._goes(path, curve, n_rows, rate, n))
        for session in late:
            cost_s, pays = self.inline.behind_s(session), session in paying
            if pays or self._may_probe(cost_s + self.inline.td.value):
                self._saved_s -= 0.0 if pays or self._tries else cost_s
                self.inline.read(session)
            if self.inline.behind(session):
                path = self._paths.pop(session)
                if self.inline.beside and (pays or self._tries):
                    self._watching[session] = path
        return 0.0 if self.inline.beside else self._clock() - began

    def _paying(
        self, late: Sequence[int], left_s: float, pays: Callable[[_StepPath, int], bool]
    ) -> Sequence[int]:
        """The sessions to evaluate. late: those with tokens to evaluate, in ascending order of how many. As
        many are taken as need less than left_s seconds together. If none is ready, one is taken in any case,
        since it shows what guesses bring. pays: whether a guess pays for a session if n share its time."""
        n_ready = len(self._paths) - len(late)
        paying = [session for session in late if pays(self._paths[session], len(self._paths))]
        costs_s = itertools.accumulate(map(self.inline.behind_s, paying))
        paying = paying[: max(bisect_left(list(costs_s), left_s), int(not n_ready))]
        while True:
            n = n_ready + len(paying)
            going = [session for session in paying if pays(self._paths[session], n)]
            if len(going) == len(paying):
                return going
            paying = going

    def _may_probe(self, cost_s: float) -> bool:
        """Whether guesses that do not seem to pay may take this long."""
        return self._tries or self._saved_s >= cost_s

    def stepped(self, step: TimedStep, spent_s: float, plain_s: float) -> float:
        """A step took spent_s for drafting; it would have taken plain_s without guesses. Returns the tokens
        that it had beyond those that plain steps make in that time, 0 where it has its width in any case."""
        if not (spent_s > 0.0 and plain_s > 0.0):
            return 0.0
        more_s = spent_s + step.decode_s - plain_s
        gained = step.n_tokens - step.n_sessions
        return 0.0 if self._is_stable else gained - step.n_sessions / plain_s * more_s

    def is_needless(
        self, ask: Ask, speculated: Speculated, offered: Sequence[float], price: StepPrice, n_asking: int = 1
    ) -> bool:
        """Whether guesses that are there bring the session as much as this model's would, whose time counts.
        offered: probabilities that they are reached and right, best first. n_asking: sessions that share the
        time of each round of guesses."""
        if not offered:
            return False
        acceptance, td_s = self._mean(speculated), self.inline.td.value
        limit = min(ask.limit, self.inline.most)
        alike = [acceptance] * n_asking
        rate = min(price.rate, reachable(price.seconds, price.n_rows, alike, limit, td_s))
        there = worth(price.seconds, price.n_rows, offered, rate)
        own = [acceptance**k for k in range(1, limit + 1)]
        return there > 0.0 and there >= worth(price.seconds, price.n_rows, own, rate, td_s / n_asking)

    def chain(self, session: int) -> Proposal:
        """The guesses for the session, with the distributions they were sampled from."""
        path = self._paths.get(session)
        if path is None or not path.tokens:
            return NOTHING
        n = len(path.tokens)
        return Proposal(
            tuple(path.tokens), tuple(range(-1, n - 1)), (self.inline.source,) * n, tuple(path.drafted)
        )

    def missed(self, speculated: Speculated, widths: Widths) -> None:
        """The step had no row for this session's guesses. A right one costs it nothing then; if it was made
        to see whether it is right, the guesses of later steps may cost one token more."""
        path, session = self._paths.get(speculated.session.id), speculated.session
        if path is None or path.tokens[:1] != list(session.tokens[-1:]):
            return
        if path.watched:
            speculated.balance.allowance += 1.0
        if path.watched or (widths.pays and widths.width == PLAIN):
            speculated.n_lost = 0.0

    def _mean(self, speculated: Speculated) -> float:
        source = self.inline.source
        return speculated.acceptance.mean(source) if speculated.allows(source) else 0.0

    def _reachable(self, curve: Sequence[float], n_rows: int) -> float:
        paths = self._paths.values()
        if not paths:
            return math.inf
        acceptances = [sum(share * right for share, right in path.outlook) for path in paths]
        limit = max(path.limit or path.most for path in paths)
        return reachable(curve, n_rows, acceptances, limit, self.inline.td.value)

    def _going(self, curve: Sequence[float], rows: int, rate: float) -> list[int]:
        """The sessions for which another guess pays."""
        n = len(self._paths)
        return [id for id, path in self._paths.items() if self._goes(path, curve, rows, rate, n)]

    def _goes(self, path: _StepPath, curve: Sequence[float], rows: int, rate: float, n: int) -> bool:
        """Whether another guess is made for this session, if n share the time of a round: since it pays, or
        to be watched. Sets path.watched."""
        left, td_s = path.limit - len(path.tokens), self.inline.td.value / n
        if not self._policy.gate:
            return left > 0
        if left > 0 and worth_drafting(curve[rows : rows + left + 1], path.sure, path.outlook, td_s, rate):
            return not path.watched
        if not path.tokens and path.limit < path.most:
            most = curve[rows : rows + path.most + 1]
            path.watched = worth_drafting(most, path.sure, path.outlook, td_s, rate)
            return path.watched
        return False

    def _graft(self, session: int, guess: DraftGuess | None, speculated: Speculated) -> None:
        path = self._paths[session]
        if guess is None:
            path.limit = path.most = 0  # the draft model cannot go on
            return
        confidence = int(255 * guess.confidence)
        source = self.inline.source
        speculated.tree.branch(path.tokens, source, guess.token, confidence)
        if guess.second is not None:
            second = int(255 * guess.second_confidence)
            speculated.tree.branch(path.tokens, source, guess.second, second)
        path.tokens.append(guess.token)
        if guess.drafted is not None:
            path.drafted.append(guess.drafted)
        path.sure *= path.acceptance.probability(source, confidence)
