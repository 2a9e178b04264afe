"""One session under speculation: what is committed, what is guessed beyond it, and who guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from server.engine.proposer import OpenedSession
from server.speculation.gating.acceptance import Acceptance
from server.speculation.gating.balance import Balance
from server.speculation.gating.tree import LEAST, ScoredTree
from server.speculation.sources.lookup import Lookup, PredictedReply
from server.speculation.wire.messages import chain_start


@dataclass(slots=True)
class Speculated:
    """wire_id is unique across the leads of a pool; of the session's tokens n_prompt were there at first, and
    the first n_indexed are in `lookup`. drafters: the ids of those it is assigned to; heard: since they are,
    one of them sent guesses; n_lost: tokens that plain steps would have made in the time that verifying
    their guesses takes in this step."""

    wire_id: int
    session: OpenedSession
    acceptance: Acceptance
    lookup: Lookup | None
    prediction: PredictedReply | None = field(init=False)
    tree: ScoredTree = field(init=False)
    n_prompt: int = field(init=False)
    n_indexed: int = 0
    drafters: set[str] = field(default_factory=set[str])
    heard: bool = False
    n_lost: float = 0.0
    balance: Balance = field(default_factory=Balance)

    def __post_init__(self) -> None:
        tokens, expected = self.session.tokens, self.session.bounds.prediction
        self.n_prompt = len(tokens)
        self.tree = ScoredTree(len(tokens), chain_start(tokens))
        self.prediction = PredictedReply(expected) if expected else None

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

    def index(self, most: int) -> None:
        """Give the lookup at most `most` more tokens: a long prompt takes several steps."""
        tokens = self.session.tokens
        if self.lookup is None or self.n_indexed >= len(tokens):
            return
        new = tokens[self.n_indexed : self.n_indexed + most]
        self.lookup.extend(new)
        self.n_indexed += len(new)

    def look_up(self, n: int, least: float = 0.0) -> bool:
        """Graft guesses of the lookup, n in a row at most, as long as their path has probability `least`.
        Returns whether there are any."""
        if self.lookup is None or self.n_indexed < len(self.session.tokens):
            return False
        return self._guess("lookup", *self.lookup.guess(n), least)

    def expect(self, n: int) -> None:
        """Graft what the client expects, n in a row at most."""
        if self.prediction is not None:
            self._guess("prediction", *self.prediction.guess(n))

    def _guess(
        self, source: str, tokens: Sequence[int], confidences: Sequence[float], least: float = 0.0
    ) -> bool:
        if not tokens or not self.allows(source):
            return False
        paths = accumulate(confidences, mul)
        least = max(least, LEAST)
        n = next((i for i, path in enumerate(paths) if path < least), len(tokens))
        self.tree.guess(source, tokens[:n], [int(255 * c) for c in confidences[:n]])
        return True
