"""One session under speculation: its committed tokens, guesses and drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from server.engine.proposer import OpenedSession
from server.speculation.account import Account
from server.speculation.hits import SessionHitRates
from server.speculation.sources.assignment import Yield
from server.speculation.sources.lookup import Lookup, LookupGuess, PredictedReply
from server.speculation.tree import LEAST, ScoredTree
from server.speculation.wire.messages import chain_start

INDEXED = 64  # tokens that are indexed at once, for about 0.1 ms
# Account of the models in one session. patience: they may pause after 3 steps with guesses for this session
# alone, after 12 with messages, or after 24 with guesses for several sessions, each of which gets few. With
# 12, 5 or 3 steps alone, 7, 4 or none of 178 replies of 400M are below 0.95 of the undrafted speed, and 23,
# 14 or 14 of the bundled pair, whose total is 1 percent slower with 3 (benchmarks.inside --every-way).
# per_step: tokens that guesses may cost a session in a step while they have gained nothing. With 2, the
# slowest of 187 replies of the bundled pair is at 0.90 of the undrafted speed instead of 0.94. With 1, all
# are 3 percent slower. Without a bound, all are 3 percent faster and the slowest is at 0.77.
IN_SESSION = partial(Account, patience=24.0, per_step=1.5)


@dataclass(slots=True)
class Speculated:
    """A session, its guesses and its drafters."""

    wire_id: int  # unique across the leads of a pool
    session: OpenedSession
    hits: SessionHitRates
    lookup: Lookup | None
    prediction: PredictedReply | None = field(init=False)
    n_prompt: int = field(init=False)  # tokens of the prompt
    n_indexed: int = 0  # leading tokens that are in `lookup`
    n_sent: int = 0  # leading tokens that its drafters have been sent
    # drafters that have the session, by id
    drafters: dict[str, Yield] = field(default_factory=dict[str, Yield])
    # what drafters contributed, by id, including those that left
    yields: dict[str, Yield] = field(default_factory=dict[str, Yield])
    # by drafter: number of tokens that must be committed before the session may be resent to it
    resent: dict[str, int] = field(default_factory=dict[str, int])
    # by drafter with a head: number of leading tokens whose hidden rows (hidden states) it has been sent
    n_rows_sent: dict[str, int] = field(default_factory=dict[str, int])
    heard: bool = False  # True once one of its current drafters has sent guesses
    is_spared: bool = False  # True if no drafter may have the session
    account: Account = field(default_factory=IN_SESSION)  # its models' account
    _n_expected: int = 0  # tokens of the reply that `prediction` has seen
    _tree: ScoredTree = field(init=False)

    def __post_init__(self) -> None:
        tokens, expected = self.session.tokens, self.session.bounds.prediction
        self.n_prompt = len(tokens)
        self._tree = ScoredTree(len(tokens), chain_start(tokens))
        self.prediction = PredictedReply(expected) if expected else None

    @property
    def tree(self) -> ScoredTree:
        """Return the tree of guesses after all committed tokens.

        The tree is moved past newly committed tokens only when it is read, so that it costs nothing in a
        session without guesses.
        """
        tree, tokens = self._tree, self.session.tokens
        if tree.position != len(tokens):
            tree.commit(tokens[tree.position :], self.hits)
        return tree

    def is_quiet(self, uses_lookups: bool) -> bool:
        """Return True if no source, except perhaps a grammar, has a guess.

        Lookups count only if `uses_lookups` is True.
        """
        if self._tree.n_below and self.tree.n_below:  # a tree without guesses need not be updated
            return False
        if self.prediction is not None:
            return False
        if not uses_lookups or self.lookup is None:
            return True
        self.keep_up()
        return not self.lookup.follows

    @property
    def reply(self) -> Sequence[int]:
        """Return the tokens committed since the session was opened."""
        return self.session.tokens[self.n_prompt :]

    def allows(self, source: str) -> bool:
        """Return True if the request allows this source.

        A guess on which several sources agree has all their names, joined by " & ", as its source. Then one
        allowed name suffices.
        """
        wanted = self.session.bounds.drafters
        if wanted is None:
            return True
        return any(one in wanted or one.rsplit("-", 2)[0] in wanted for one in source.split(" & "))

    def may_resend(self, drafter: str, n_ahead: int) -> bool:
        """Return True if the session may be resent to a drafter after a lost draft; count it as resent.

        The first time it may be resent at once. Later, n_ahead more tokens must be committed first, since
        drafts already on the way may be lost for the same reason.
        """
        if self.tree.position < self.resent.get(drafter, 0):
            return False
        self.resent[drafter] = self.tree.position + n_ahead
        return True

    @property
    def is_behind(self) -> bool:
        """True if the lookup has not indexed all of the session's tokens yet."""
        return self.n_indexed < len(self.session.tokens)

    def keep_up(self) -> None:
        """Add newly committed tokens to the lookup, unless they are more than INDEXED: index() adds those."""
        if 0 < len(self.session.tokens) - self.n_indexed <= INDEXED:
            self.index(INDEXED)

    def index(self, most: int) -> int:
        """Add at most `most` more tokens to the lookup, and return how many were added.

        A long prompt is added over several steps.
        """
        if self.lookup is None:
            return 0
        new = self.session.tokens[self.n_indexed : self.n_indexed + most]
        self.lookup.extend(new)
        self.n_indexed += len(new)
        return len(new)

    def look_up(self, n: int) -> None:
        """Add at most n guesses of the lookup to the tree, if it has indexed all tokens."""
        self.keep_up()
        if self.lookup is not None and not self.is_behind and self.allows("lookup"):
            self._graft("lookup", self.lookup.guess(n, LEAST))

    def expect(self, n: int) -> None:
        """Add at most n guesses to the tree: the next tokens of the reply that the client predicted."""
        if self.prediction is not None and self.allows("prediction"):
            new = self.session.tokens[self.n_prompt + self._n_expected :]
            self.prediction.extend(new)
            self._n_expected += len(new)
            self._graft("prediction", self.prediction.guess(n, LEAST))

    def _graft(self, source: str, guess: LookupGuess) -> None:
        tokens, confidences = guess
        if tokens:
            self.tree.guess(source, tokens, [int(255 * c) for c in confidences])
