"""One session under speculation: what is committed, what is guessed beyond it, and who guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from server.engine.proposer import OpenedSession
from server.speculation.gating.acceptance import SessionAcceptance
from server.speculation.gating.balance import Balance
from server.speculation.gating.tree import LEAST, ScoredTree
from server.speculation.sources.assignment import Yield
from server.speculation.sources.lookup import Lookup, LookupGuess, PredictedReply
from server.speculation.wire.messages import chain_start


class Assigned(NamedTuple):
    """Of a drafter in a session: of how many of its tokens it is known what it brought, or shall have been
    when it has read them; and how many it had guessed by then."""

    n_tokens: int
    n_right: int


@dataclass(slots=True)
class Speculated:
    """wire_id is unique across the leads of a pool; of the session's tokens n_prompt were there at first, and
    the first n_indexed are in `lookup`. drafters: the places of those it is assigned to, by id; yields:
    what these brought it, and others that were here before; told_again: from how many tokens on a drafter is
    told it again if another draft is lost; heard: since they are here, one of them sent
    guesses; n_lost: tokens that plain steps would have made in the time that models' guesses take in this
    step: making those of the lead, and verifying all."""

    wire_id: int
    session: OpenedSession
    acceptance: SessionAcceptance
    lookup: Lookup | None
    prediction: PredictedReply | None = field(init=False)
    n_prompt: int = field(init=False)
    n_indexed: int = 0
    drafters: dict[str, Assigned] = field(default_factory=dict[str, Assigned])
    yields: dict[str, Yield] = field(default_factory=dict[str, Yield])
    told_again: dict[str, int] = field(default_factory=dict[str, int])
    heard: bool = False
    n_lost: float = 0.0
    balance: Balance = field(default_factory=Balance)
    _tree: ScoredTree = field(init=False)

    def __post_init__(self) -> None:
        tokens, expected = self.session.tokens, self.session.bounds.prediction
        self.n_prompt = len(tokens)
        self._tree = ScoredTree(len(tokens), chain_start(tokens))
        self.prediction = PredictedReply(expected) if expected else None

    @property
    def tree(self) -> ScoredTree:
        """Of guesses past all committed tokens. It takes in those that are new when somebody looks, so that
        a session for which nobody guesses costs nothing."""
        tree, tokens = self._tree, self.session.tokens
        if tree.position != len(tokens):
            tree.commit(tokens[tree.position :], self.acceptance)
        return tree

    def is_quiet(self, looks: bool) -> bool:
        """Whether nobody has a guess for it, grammars apart. looks: lookups may guess."""
        if self._tree.n_below and self.tree.n_below:  # one without guesses need not take in what is new
            return False
        if self.prediction is not None:
            return False
        return not (looks and self.lookup is not None and self.lookup.follows)

    @property
    def reply(self) -> Sequence[int]:
        """The tokens committed since the session was opened."""
        return self.session.tokens[self.n_prompt :]

    def allows(self, source: str) -> bool:
        """Whether the request allows this source, or one of several that agree."""
        wanted = self.session.bounds.drafters
        if wanted is None:
            return True
        return any(one in wanted or one.rsplit("-", 2)[0] in wanted for one in source.split(" & "))

    def may_tell_again(self, drafter: str, n_ahead: int) -> bool:
        """Whether the drafter, of which a draft was lost, is told the session again: at once, but once until
        the n_ahead tokens are behind that it may have guessed. It may answer with more such drafts."""
        if self.tree.position < self.told_again.get(drafter, 0):
            return False
        self.told_again[drafter] = self.tree.position + n_ahead
        return True

    @property
    def is_behind(self) -> bool:
        """Whether the lookup, if there is one, misses tokens."""
        return self.n_indexed < len(self.session.tokens)

    def index(self, most: int) -> int:
        """Give the lookup at most `most` more tokens: a long prompt takes several steps. Returns how many."""
        if self.lookup is None:
            return 0
        new = self.session.tokens[self.n_indexed : self.n_indexed + most]
        self.lookup.extend(new)
        self.n_indexed += len(new)
        return len(new)

    def look_up(self, n: int, least: float = 0.0) -> None:
        """Graft guesses of the lookup, n in a row at most, as long as their path has probability `least`."""
        if self.lookup is not None and not self.is_behind and self.allows("lookup"):
            self._graft("lookup", self.lookup.guess(n, max(least, LEAST)))

    def expect(self, n: int) -> None:
        """Graft what the client expects, n in a row at most."""
        if self.prediction is not None and self.allows("prediction"):
            self._graft("prediction", self.prediction.guess(n, LEAST))

    def _graft(self, source: str, guess: LookupGuess) -> None:
        tokens, confidences = guess
        if tokens:
            self.tree.guess(source, tokens, [int(255 * c) for c in confidences])
