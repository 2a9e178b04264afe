"""One session under speculation: what is committed, what is guessed beyond it, and who guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from server.engine.request import Speculation
from server.sampling.params import SamplingParams
from server.speculation.gating.acceptance import Acceptance
from server.speculation.gating.tree import ScoredTree
from server.speculation.sources.lookup import Lookup, PredictedReply


@dataclass(slots=True)
class Speculated:
    """wire_id is unique across the leads of a pool; tokens is the engine's own list, of which n_prompt were
    asked and the first n_indexed are in `lookup`; tokens[i] has the noise of position i + n_dropped.
    drafters: the ids of those it is assigned to. missed: by drafter, at which position a draft of it came
    stale last, and how many of its guesses were judged by then."""

    wire_id: int
    tokens: Sequence[int]
    sampling: SamplingParams
    bounds: Speculation
    tree: ScoredTree
    acceptance: Acceptance
    n_prompt: int
    lookup: Lookup | None
    prediction: PredictedReply | None
    n_dropped: int = 0
    n_indexed: int = 0
    drafters: set[str] = field(default_factory=set[str])
    missed: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def allows(self, source: str) -> bool:
        """Whether the request allows this source, or one of several that agree."""
        wanted = self.bounds.drafters
        if wanted is None:
            return True
        return any(one in wanted or one.rsplit("-", 2)[0] in wanted for one in source.split(" & "))

    def index(self, most: int) -> None:
        """Give the lookup at most `most` more tokens: a long prompt takes several steps."""
        if self.lookup is None or self.n_indexed >= len(self.tokens):
            return
        new = self.tokens[self.n_indexed : self.n_indexed + most]
        self.lookup.extend(new)
        self.n_indexed += len(new)

    def look_up(self, n: int) -> None:
        """Graft guesses that need no model, n in a row at most."""
        if self.prediction is not None:
            self._guess("prediction", *self.prediction.guess(n))
        if self.lookup is not None and self.n_indexed == len(self.tokens):
            self._guess("lookup", *self.lookup.guess(n))

    def _guess(self, source: str, tokens: Sequence[int], confidences: Sequence[float]) -> None:
        if tokens and self.allows(source):
            self.tree.guess(source, tokens, [int(255 * c) for c in confidences])
