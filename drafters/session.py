"""One session as a drafter sees it: what the lead has committed, what was guessed beyond, what is in the KV
cache. Pure: no model, no bus, no clock."""

from __future__ import annotations

import math

from server.cache.prefix import common_prefix
from server.sampling.params import SamplingParams
from server.speculation.messages import MAX_NODES, ROOT, Commit, Draft, Open, chain_next

NO_SEQ = -1
GREEDY = SamplingParams(temperature=0.0)


class DraftSession:
    """tokens: the committed ones, then the path of guesses. The first n_kv of them are in the KV sequence
    `seq`; a path is drafted by evaluating the rest, whose last row gives the next guess."""

    def __init__(self, opened: Open) -> None:
        self.lead = opened.lead
        self.id = opened.session
        self.seq = NO_SEQ
        self.n_kv = 0
        self.lost = False  # what was committed is not known any more: nothing is worth drafting until Open
        self._adopt(opened, [], [])

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
    def n_unpublished(self) -> int:
        return len(self.tokens) - self._n_published

    @property
    def n_published_ahead(self) -> int:
        """How much of the path was published. While it is 0, the first guess is worth sending at once."""
        return self._n_published - self.n_committed

    def reopen(self, opened: Open) -> None:
        """The lead tells everything anew. What agrees with it stays, in the path and in the KV cache; the
        path is published again, since the lead may have missed it. An Open that later commits have overtaken
        changes nothing."""
        tokens = list(opened.tokens)
        agreed = common_prefix(self.tokens, tokens)
        anew = opened.epoch != self.epoch or _mirrored(opened.sampling) != self.sampling
        grown = len(tokens) - self.n_committed
        if not anew and not self.lost and agreed == len(tokens) and grown < 0:
            return
        if not anew and agreed == len(tokens) and grown >= 0:
            self._adopt(opened, self.tokens[agreed:], self._confidences[grown:])
        else:
            self.n_kv = min(self.n_kv, agreed, len(tokens) - 1)  # the last token's logits are needed
            self._adopt(opened, [], [])

    def commit(self, message: Commit) -> bool:
        """Take in what the lead committed. False if there is a gap or a contradiction: the session is lost
        until the next Open.

        A path that agrees is kept; one that diverges is rolled back to the longest common prefix, and the
        next evaluation covers the gap together with the last token that was not evaluated yet.
        """
        known = max(0, self.n_committed - message.base)
        old, new = list(message.tokens[:known]), list(message.tokens[known:])
        chain = self._chains[0]
        for token in new:
            chain = chain_next(chain, token)
        if (
            message.base > self.n_committed
            or self.tokens[message.base : message.base + len(old)] != old
            or (new and chain != message.chain)
        ):
            self.lost = True
        elif new and not self.lost:
            self._follow(new, chain)
        return not self.lost

    def extend(self, token: int, confidence: float) -> None:
        """Add a guess to the path."""
        self.tokens.append(token)
        self._chains.append(chain_next(self._chains[-1], token))
        self._confidences.append(confidence if math.isfinite(confidence) else 0.0)

    def take_draft(self, drafter: str, td_us: int) -> Draft:
        """The first MAX_NODES guesses not published yet, as a message that continues those published."""
        start = self.n_published_ahead
        tokens = tuple(self.tokens[self._n_published :][:MAX_NODES])
        end = start + len(tokens)
        self._n_published += len(tokens)
        return Draft(
            drafter,
            self.id,
            self.epoch,
            self.n_committed + start,
            self._chains[start],
            td_us,
            tuple(range(ROOT, len(tokens) - 1)),
            tokens,
            bytes(min(255, round(255 * c)) for c in self._confidences[start:end]),
        )

    def _adopt(self, opened: Open, path: list[int], confidences: list[float]) -> None:
        """Begin with the Open's tokens and this path beyond them, nothing of it published."""
        self.epoch, self.max_ahead = opened.epoch, opened.max_ahead
        self.sampling = _mirrored(opened.sampling)
        self.tokens = [*opened.tokens, *path]
        self.n_committed = self._n_published = len(opened.tokens)
        self._confidences = list(confidences)
        self._chains = [opened.chain]  # after the committed tokens, and after each guess
        for token in path:
            self._chains.append(chain_next(self._chains[-1], token))
        self.lost = False

    def _follow(self, new: list[int], chain: int) -> None:
        """These tokens are committed now; chain is the hash after them."""
        agreed = common_prefix(self.tokens[self.n_committed :], new)
        keep = self.n_committed + agreed
        self.n_committed += len(new)
        if agreed == len(new):
            del self._chains[:agreed], self._confidences[:agreed]
            self._n_published = max(self._n_published, self.n_committed)
        else:
            self.tokens[keep:] = new[agreed:]
            self.n_kv = min(self.n_kv, keep)
            self._chains, self._confidences = [chain], []
            self._n_published = self.n_committed


def _mirrored(sampling: SamplingParams) -> SamplingParams:
    """How to draw guesses: as the lead does, if what came over the wire makes sense."""
    sane = (
        0.0 <= sampling.temperature < math.inf
        and sampling.top_k >= 0
        and 0.0 <= sampling.top_p < math.inf
        and 0.0 <= sampling.min_p <= 1.0
    )
    return sampling if sane else GREEDY
