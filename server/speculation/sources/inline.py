"""Use a model in the lead as a source of guesses, as inline_plan.py decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from server.drafting.model_drafter import SHARED_ROWS
from server.engine.proposer import NOTHING, Ask, OpenedSession, Proposal
from server.estimators import Median
from server.sampling.draft_token import DraftGuess
from server.speculation import inline_plan
from server.speculation.ledger import Ledger
from server.speculation.policy import Policy
from server.speculation.speculated import Speculated
from server.speculation.step import Drafting, DraftPath
from server.speculation.view import View


class InlineModel(Protocol):
    """A model in the lead that guesses between two steps. For the engine thread only; never raises."""

    source: str  # name of its guesses
    most: int  # maximum guesses of a session in one step
    td: Median  # seconds of guess() between two steps
    beside: bool  # it can also read and guess during the target's decode, without slowing it much

    def rehearse(self) -> None:
        """Time guesses before the first request, on the thread that will guess.

        Otherwise the first guess, slower than any later one, makes the model look too slow to try.
        """
        ...

    def follow(self, session: OpenedSession, ask: Ask) -> None:
        """Begin a path after the session's committed tokens; `ask` is the session's request for guesses."""
        ...

    def behind(self, session: int) -> int:
        """Return the number of tokens to evaluate before the decode that makes the next guess.

        These are the session's latest tokens, which the model has not evaluated yet.
        """
        ...

    def behind_s(self, session: int) -> float:
        """Return the estimated seconds to evaluate the tokens of behind()."""
        ...

    def read(self, session: int, most: int) -> int:
        """Evaluate up to `most` of the tokens of behind(), now or in the next decode.

        Return the number of those evaluated now.
        """
        ...

    def read_ahead(self, session: OpenedSession, most: int) -> int:
        """Evaluate up to `most` tokens of a prompt that the target is still evaluating; return how many."""
        ...

    def guess(self, sessions: Sequence[int], *, second: bool, timed: bool = True) -> list[DraftGuess | None]:
        """Append a guess to each session's path, and return the guesses in the order of `sessions`.

        Args:
            sessions: Ids of the sessions whose paths grow.
            second: True: also give each guess the likeliest other token.
            timed: True between two steps: the call's time may be learned as the time of a guess.

        Returns:
            A guess for each session; None for a session whose path the model cannot continue.
        """
        ...

    def overlap(self, work: Callable[[], None]) -> None:
        """Call `work` at every future guess: before the guess, or while a GPU makes it."""
        ...

    def close(self, session: int, *, keep: bool) -> None:
        """Forget a session that ended; `keep`: the conversation may continue. Unknown ids are ignored."""
        ...


class Inline:
    """Lets a model in the lead read and guess while that pays, and adds its guesses to sessions' trees."""

    def __init__(
        self,
        model: InlineModel,
        policy: Policy,
        ledger: Ledger,
        sessions: Mapping[int, Speculated],
        clock: Callable[[], float],
    ) -> None:
        """Begin without guesses; `sessions` has all open sessions, by id."""
        self.model = model
        self._policy, self._ledger, self._sessions, self._clock = policy, ledger, sessions, clock

    # -- before a decode ----------------------------------------

    def draft(self, view: View, before: Drafting | None) -> tuple[float, Mapping[int, float]]:
        """Make as many guesses as pay; return the seconds taken, and the cost in tokens by session.

        Args:
            view: The step; its `drafting` is set.
            before: What the model did for the step before.
        """
        drafting = view.drafting = self._begin(view)
        charges = defaultdict[int, float](float)
        late = sorted(filter(self.model.behind, drafting.paths), key=self.model.behind)
        spent_s = self._read(view, drafting, late) if late else 0.0
        spent_s += self._guess_on(drafting, *inline_plan.wanted(drafting), charges)
        if drafting.paths and not drafting.has_guessed and (drafting.tries or drafting.may_probe):
            # no guess seems to pay
            if not drafting.tries:
                drafting.probe_s += drafting.td_s
            if self.model.beside:
                drafting.beside |= drafting.paths
            else:
                if not (before and before.has_guessed):
                    self.model.td.restart()  # the time of its latest guesses may have been disturbed
                spent_s += self._guess_on(drafting, list(drafting.paths), (), charges)
        for session in charges:
            charges[session] *= drafting.undrafted_rate
        return spent_s, charges

    def _begin(self, view: View) -> Drafting:
        """Return the model's state in this step, with an empty path for each session."""
        model, policy, ledger = self.model, self._policy, self._ledger
        drafting = Drafting(
            model.source,
            model.td.value,
            policy.gate,
            ledger.inline.gain if ledger.inline else 0.0,
            model.behind_s,
            view.seconds,
            n_rows=view.n_rows,
            undrafted_rate=view.undrafted_rate,
        )
        wanting = [
            i for i, ask in enumerate(view.asks) if ask.limit > 0 and not view.sessions[i].account.paused
        ]
        if policy.gate and not policy.by_rejection:
            wanting = [i for i in wanting if not inline_plan.is_needless(view, drafting, i, len(wanting))]
        if policy.again and wanting:
            drafting.seconds = inline_plan.with_lost_rows(view, drafting, wanting)
        drafting.tries = len(view.asks) == 1 and not all(
            view.sessions[i].account.has_evidence for i in wanting
        )
        drafting.may_probe = ledger.probes.is_active
        for i in wanting:
            speculated, ask = view.sessions[i], view.asks[i]
            if speculated.allows(model.source):
                model.follow(speculated.session, ask)
                most = min(ask.limit, model.most)
                drafting.paths[ask.session] = inline_plan.draft_path(view, drafting, i, most)
        drafting.rate = inline_plan.reachable_rate(view, drafting)
        return drafting

    def _read(self, view: View, drafting: Drafting, late: Sequence[int]) -> float:
        """Let the draft model catch up with sessions; return the seconds for which the step waits.

        The sessions are those that inline_plan.choose_reading() chooses. A session with unevaluated tokens
        left is removed from drafting.paths: it gets no guess before the target's decode. If the draft
        model can work during that decode (InlineModel.beside), the session may get one guess then. With such
        a model, the returned seconds are always 0.0, since the step does not wait.

        Args:
            view: The step.
            drafting: The draft model's state.
            late: Sessions with tokens that the model has not evaluated, those with the fewest first.
        """
        model = self.model
        paying, unpaid = inline_plan.choose_reading(view, drafting, late)
        if not drafting.tries:
            drafting.probe_s += sum(map(drafting.behind_s, unpaid))
        # a lone session reads all in one decode
        most = left = SHARED_ROWS if view.n_rows > 1 else sum(map(model.behind, late))
        began = self._clock()
        for session in (*paying, *unpaid):
            left -= model.read(session, left)
        drafting.n_read = most - left
        for session in filter(model.behind, list(drafting.paths)):
            path = drafting.paths.pop(session)
            if model.beside and (drafting.tries or session in paying):
                drafting.beside[session] = path
        return 0.0 if model.beside else self._clock() - began

    def _guess_on(
        self, drafting: Drafting, guess: Sequence[int], probe: Sequence[int], charges: dict[int, float]
    ) -> float:
        """Make a guess for each of these sessions, then as many more as pay; return the seconds taken.

        Args:
            drafting: The model's state.
            guess: The sessions. If there are none, no guess is made.
            probe: Those of the sessions whose guess is a probe, made only to see whether it is right.
            charges: Seconds by session. Each session's share of the time of these guesses is added.
        """
        spent_s, clock = 0.0, self._clock
        while guess:
            drafting.has_guessed = True
            began = clock()
            drafting.n_guesses += self._guess(drafting, guess, probe)
            took_s = clock() - began
            spent_s += took_s
            for session in guess:
                charges[session] += took_s / len(guess)
            guess, probe = inline_plan.wanted(drafting)
        return spent_s

    def read_prompts(self, sessions: Sequence[Speculated], drafting: Drafting | None) -> float:
        """Evaluate parts of these sessions' prompts with the draft model, and return the seconds taken.

        The reply to a prompt then has guesses from its first token on. Called in steps in which other
        sessions decode. At most SHARED_ROWS tokens are evaluated in a step, including those that draft() has
        evaluated.
        """
        began, left = self._clock(), SHARED_ROWS - (drafting.n_read if drafting else 0)
        for one in sessions:
            if left > 0 and not one.account.paused and one.allows(self.model.source):
                left -= self.model.read_ahead(one.session, left)
        return self._clock() - began

    # -- during a decode ----------------------------------------

    def guess_beside(self, drafting: Drafting) -> Mapping[int, float]:
        """Guess once for each session in `drafting.beside`; return the cost in tokens by session."""
        sessions = list(drafting.beside)
        drafting.paths |= drafting.beside
        began = self._clock()
        self._guess(drafting, sessions, sessions, timed=False)
        return dict.fromkeys(sessions, drafting.undrafted_rate * (self._clock() - began) / len(sessions))

    # -- guesses ----------------------------------------

    def chain(self, path: DraftPath | None) -> Proposal:
        """Return the path's guesses, with the distributions that they were sampled from."""
        if path is None or not path.tokens:
            return NOTHING
        n = len(path.tokens)
        source = (self.model.source,) * n
        return Proposal(tuple(path.tokens), tuple(range(-1, n - 1)), source, tuple(path.drafted))

    def _guess(
        self, drafting: Drafting, sessions: Sequence[int], probe: Sequence[int], *, timed: bool = True
    ) -> int:
        """Make one guess for each of these sessions, and return the number of guesses.

        Args:
            drafting: The model's state, whose paths grow.
            sessions: The sessions.
            probe: Those of the sessions whose guess is a probe.
            timed: True if the guess runs between two steps, so that its time is typical; False if it runs
                beside a decode.
        """
        paths = drafting.paths
        for session in probe:
            paths[session].is_probe = True
        guesses = self.model.guess(sessions, second=self._policy.leaves > 1, timed=timed)
        for session, guess in zip(sessions, guesses, strict=True):
            self._graft(paths[session], guess, self._sessions[session])
        return len(guesses) - guesses.count(None)

    def _graft(self, path: DraftPath, guess: DraftGuess | None, speculated: Speculated) -> None:
        if guess is None:
            path.limit = path.most = 0  # the draft model cannot go on
            return
        confidence, source, tree = int(255 * guess.confidence), self.model.source, speculated.tree
        tree.branch(path.tokens, source, guess.token, confidence)
        if guess.second is not None:
            tree.branch(path.tokens, source, guess.second, int(255 * guess.second_confidence))
        path.tokens.append(guess.token)
        if guess.drafted is not None:
            path.drafted.append(guess.drafted)
        path.sure *= speculated.hits.probability(source, confidence)
