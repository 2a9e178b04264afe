"""One session as a drafter sees it: what the lead has committed, what was guessed beyond, what is in the KV
cache. Pure: no model, no bus, no clock."""

from __future__ import annotations

import math

from server.cache.prefix import common_prefix
from server.speculation.messages import ROOT, Commit, Draft, Open, chain_next

NO_SEQ = -1


class DraftSession:
    """tokens: the committed ones, then the path of guesses. The first n_kv of them are in the KV sequence
    `seq`; a path is drafted by evaluating the rest, whose last row gives the next guess."""

    def __init__(self, opened: Open) -> None:
        self.lead = opened.lead
        self.id = opened.session
        self.epoch = opened.epoch
        self.sampling = opened.sampling
        self.max_ahead = opened.max_ahead
        self.tokens = list(opened.tokens)
        self.n_committed = len(self.tokens)
        self.seq = NO_SEQ
        self.n_kv = 0
        self._chains = [opened.chain]  # after the committed tokens, and after each guess
        self._confidences: list[float] = []
        self._n_published = self.n_committed

    @property
    def n_ahead(self) -> int:
        return len(self.tokens) - self.n_committed

    @property
    def pending(self) -> list[int]:
        """What has to be evaluated before the next guess; never empty."""
        return self.tokens[self.n_kv :]

    @property
    def score(self) -> float:
        """The path's probability, by the drafter's own account."""
        return math.prod(self._confidences)

    @property
    def unpublished(self) -> int:
        return len(self.tokens) - self._n_published

    @property
    def diverged(self) -> bool:
        """Whether nothing of the present path is published yet: its first guess is worth sending at once."""
        return self._n_published == self.n_committed

    def reopen(self, opened: Open) -> None:
        """The lead tells everything anew. What agrees with the KV cache stays there."""
        self.epoch, self.sampling, self.max_ahead = opened.epoch, opened.sampling, opened.max_ahead
        self.n_kv = min(self.n_kv, common_prefix(self.tokens, list(opened.tokens)))
        self.tokens = list(opened.tokens)
        self._restart(opened.chain)

    def commit(self, message: Commit) -> bool:
        """Take in what the lead committed. False if there is a gap or a contradiction: ask for Open then.

        A path that agrees is kept; one that diverges is rolled back to the longest common prefix, and the
        next evaluation covers the gap together with the last token that was not evaluated yet.
        """
        known = self.n_committed - message.base
        if known < 0:
            return False
        old, new = list(message.tokens[:known]), list(message.tokens[known:])
        if self.tokens[message.base : message.base + len(old)] != old:
            return False
        if not new:
            return True
        path = self.tokens[self.n_committed :]
        agreed = common_prefix(path, new)
        self.n_committed += len(new)
        if agreed == len(new):
            del self._chains[: len(new)], self._confidences[: len(new)]
            self._n_published = max(self._n_published, self.n_committed)
            return True
        keep = self.n_committed - len(new) + agreed
        self.tokens[keep:] = new[agreed:]
        self.n_kv = min(self.n_kv, keep)
        self._restart(message.chain)
        return True

    def extend(self, token: int, confidence: float) -> None:
        """Add a guess to the path."""
        self.tokens.append(token)
        self._chains.append(chain_next(self._chains[-1], token))
        self._confidences.append(confidence)

    def take_draft(self, drafter: str, td_us: int) -> Draft:
        """The guesses not published yet, as a message that continues those published before."""
        start = self._n_published - self.n_committed
        tokens = tuple(self.tokens[self._n_published :])
        self._n_published = len(self.tokens)
        return Draft(
            drafter,
            self.id,
            self.epoch,
            self.n_committed + start,
            self._chains[start],
            td_us,
            tuple(range(ROOT, len(tokens) - 1)),
            tokens,
            bytes(min(255, round(255 * c)) for c in self._confidences[start:]),
        )

    def _restart(self, chain: int) -> None:
        self.n_committed = len(self.tokens)
        self._chains, self._confidences = [chain], []
        self._n_published = self.n_committed
        self.n_kv = min(self.n_kv, len(self.tokens) - 1)  # the last token's logits are needed
