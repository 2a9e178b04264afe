"""Use a model in the lead as a source of guesses, as the planner requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from server.drafting.model_drafter import SHARED_ROWS
from server.engine.proposer import NOTHING, Ask, OpenedSession, Proposal
from server.estimators import Median
from server.sampling.draft_token import DraftGuess
from server.speculation.policy import Policy
from server.speculation.speculated import Speculated
from server.speculation.step import Drafting, DraftPath, Request


class InlineModel(Protocol):
    """Makes guesses between two steps, for the engine thread only; never raises."""

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
        """Begin a path after the session's committed tokens; `ask`: its limits and place in the next step."""
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
        """Evaluate up to `most` tokens of a prompt that the target evaluates too; return how many."""
        ...

    def guess(self, sessions: Sequence[int], *, second: bool, timed: bool = True) -> list[DraftGuess | None]:
        """Append a guess to each session's path, and return the guesses in the order of `sessions`.

        Args:
            sessions: Ids of the sessions whose paths grow.
            second: Add the second choice to each guess.
            timed: True between two steps: the call's time may be learned as the time of a guess.

        Returns:
            A guess for each session; None where the model cannot go on.
        """
        ...

    def overlap(self, work: Callable[[], None]) -> None:
        """Call `work` before each guess, or while a GPU makes it."""
        ...

    def close(self, session: int, *, keep: bool) -> None:
        """Forget a session that ended; `keep`: the conversation may continue. Unknown ids are ignored."""
        ...


class Inline:
    """Grafts guesses of a model in the lead into the sessions' trees."""

    def __init__(self, model: InlineModel, policy: Policy, clock: Callable[[], float]) -> None:
        self.model = model
        self._policy = policy
        self._clock = clock

    def read(self, request: Request, drafting: Drafting) -> float:
        """Evaluate tokens of the request's sessions that the model lacks; return the seconds of waiting.

        A session with tokens still to be evaluated has no guesses in this step.
        """
        began, left = self._clock(), request.most_rows
        for session in request.read:
            left -= self.model.read(session, left)
        drafting.is_read, drafting.n_read = True, request.most_rows - left
        for session in filter(self.model.behind, list(drafting.paths)):
            path = drafting.paths.pop(session)
            if session in request.probe:
                drafting.beside[session] = path
        return 0.0 if self.model.beside else self._clock() - began

    def read_prompts(self, sessions: Sequence[Speculated], drafting: Drafting | None) -> float:
        """Evaluate parts of these sessions' prompts with the draft model, and return the seconds taken.

        Other sessions decode meanwhile. So there are guesses from a reply's first token on.
        """
        began, left = self._clock(), SHARED_ROWS - (drafting.n_read if drafting else 0)
        for one in sessions:
            if left > 0 and not one.account.paused and one.allows(self.model.source):
                left -= self.model.read_ahead(one.session, left)
        return self._clock() - began

    def guess(
        self,
        request: Request,
        paths: Mapping[int, DraftPath],
        sessions: Mapping[int, Speculated],
        *,
        timed: bool = True,
    ) -> int:
        """Make one guess for each session of the request, and return the number of guesses.

        Args:
            request: The sessions, and those whose guess is a probe, made only to see whether it is right.
            paths: The sessions' guesses so far; the new ones are added.
            sessions: All sessions, by id.
            timed: True between two steps, so that the model may learn the time of a guess; False beside a
                decode.
        """
        for session in request.probe:
            paths[session].is_probe = True
        guesses = self.model.guess(request.guess, second=self._policy.leaves > 1, timed=timed)
        for session, guess in zip(request.guess, guesses, strict=True):
            self._graft(paths[session], guess, sessions[session])
        return len(guesses) - guesses.count(None)

    def chain(self, path: DraftPath | None) -> Proposal:
        """Return the path's guesses, with the distributions that they were sampled from."""
        if path is None or not path.tokens:
            return NOTHING
        n = len(path.tokens)
        source = (self.model.source,) * n
        return Proposal(tuple(path.tokens), tuple(range(-1, n - 1)), source, tuple(path.drafted))

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
        path.sure *= path.hits.probability(source, confidence)
