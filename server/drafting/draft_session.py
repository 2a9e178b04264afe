"""A session in a drafter: committed tokens, guesses, and its part of the KV cache. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

from server.cache.prefix import common_prefix
from server.drafting.branch import NO_SEQ, Branch
from server.sampling.draft_token import DraftGuess
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import Commit, Draft, Open, Rows, chain_next

GREEDY = SamplingParams(temperature=0.0)
MAX_UNREAD_ROWS = 64  # unread Rows messages of a session: a head reads all at each turn. Bounds memory
COLDEST = 1e-6  # minimum temperature except 0: lower ones overflow scores. No lead sends any: twice is safe


class DraftSession:
    """A session in a drafter: `tokens` has its committed tokens, then the guesses of its path.

    The KV sequence `seq` contains the first n_kv tokens. Evaluating the other tokens gives the next guess.
    Branches are alternatives to the path, for the case that the lead rejects it. A branch that the lead
    commits becomes the path. It is also `taken` until DraftCache has exchanged the sequences of session and
    branch; meanwhile n_kv counts the tokens in the branch's sequence.
    """

    def __init__(self, opened: Open) -> None:
        self.lead = opened.lead
        self.id = opened.session
        self.salt = opened.salt
        self.n_prompt = len(opened.tokens)  # number of committed tokens in the first Open message
        self.n_opened = 0  # number of Open messages so far
        self.seq = NO_SEQ
        self.n_kv = 0
        self.lost = False  # the committed tokens are unknown: no drafting until the next Open
        self.has_new_tokens = True  # DraftCache's owner has not handled the lead's latest message yet
        self.taken: Branch | None = None
        # guesses, each with the token committed at its position; DraftCache's owner reads and empties it
        self.evidence: list[tuple[DraftGuess, int]] = []
        self.n_mistakes = 0  # wrong guesses without a branch that had the right token; reset by the owner
        self.rows = deque[Rows](maxlen=MAX_UNREAD_ROWS)  # read and emptied by a head
        # number of committed tokens, and time in seconds, when n_mistakes was last reset
        self.learned_at: tuple[int, float] = 0, 0.0
        # for the worker
        self.heard_at = 0.0  # time of the lead's last message about this session
        self.n_failures = 0  # consecutive failed decodes
        self.is_obstructed = False  # the obstacle has been logged
        self._adopt_open(opened)

    @property
    def n_committed(self) -> int:
        return self.path.fork

    @property
    def n_ahead(self) -> int:
        return len(self.path.guesses)

    @property
    def pending(self) -> list[int]:
        """Return the tokens to evaluate for the next guess; none while the last token is being decoded."""
        return self.tokens[self.n_kv :]

    @property
    def score(self) -> float:
        """Return the path's probability, by the drafter's own estimate."""
        return self.path.scores[-1]

    @property
    def n_unpublished(self) -> int:
        return self.n_ahead - self.path.n_published

    def reopen(self, opened: Open, *, anew: bool = False) -> None:
        """Apply the tokens and settings of another Open message for this session.

        Guesses and KV cells that agree with its tokens stay. The path is published again, since the lead may
        have missed it. An Open with fewer tokens than the committed ones changes nothing, unless `anew` says
        that the text itself has changed.
        """
        self.has_new_tokens = True
        tokens = list(opened.tokens)
        agreed = common_prefix(self.tokens, tokens)
        goes_on = not anew and agreed == len(tokens) and _mirrored_sampling(opened.sampling) == self.sampling
        grown = len(tokens) - self.n_committed
        if goes_on and grown >= 0:
            self._adopt_open(opened, self.path.guesses[grown:])
        elif self.lost or not goes_on:
            self.n_kv = min(self.n_kv, agreed, len(tokens) - 1)  # the last token's logits are needed
            self._adopt_open(opened)

    def commit(self, message: Commit) -> bool:
        """Add the tokens that the lead committed.

        Returns:
            False if earlier tokens are missing, or if the tokens contradict committed ones. The session is
            then lost until the next Open.
        """
        self.has_new_tokens = True
        known = max(0, self.n_committed - message.base)
        old, new = list(message.tokens[:known]), list(message.tokens[known:])
        chain = self.path.chain_after(0)
        for token in new:
            chain = chain_next(chain, token)
        if (
            message.base > self.n_committed
            or self.tokens[message.base : message.base + len(old)] != old
            or (new and chain != message.chain)
        ):
            self.lost = True
        elif new and not self.lost:
            self.follow(new)
        return not self.lost

    def follow(self, new: list[int]) -> None:
        """Add newly committed tokens.

        The path is kept if it agrees with them; else a branch that agrees becomes the path. Without either,
        the session is cut to the longest common prefix, and the new tokens are evaluated before the next
        guess.
        """
        agreed = common_prefix(self.tokens[self.n_committed :], new)
        wrong = agreed < min(len(new), self.n_ahead)
        self._judge_guesses(0, new)
        rescued = agreed < len(new) and self._take_branch(self.n_committed + agreed, new[agreed])
        if rescued:
            self._judge_guesses(agreed, new)
            agreed = common_prefix(self.tokens[self.n_committed :], new)
        self.n_mistakes += wrong and not rescued
        if agreed == len(new):
            self.path.confirm(agreed)
            self.branches = [branch for branch in self.branches if branch.fork >= self.n_committed]
        else:
            keep, chain = self.n_committed + agreed, self.path.chain_after(agreed)
            for token in new[agreed:]:
                chain = chain_next(chain, token)
            self.tokens[keep:] = new[agreed:]
            self.n_kv = min(self.n_kv, keep)
            self.path, self.branches = Branch(len(self.tokens), chain), []

    def forget_guesses(self) -> None:
        """Begin a new path after the committed tokens."""
        if self.path.guesses:
            del self.tokens[self.n_committed :]
            self.path, self.branches = Branch(self.n_committed, self.path.chain_after(0)), []
        self.n_kv = min(self.n_kv, len(self.tokens) - 1)

    def add(self, guess: DraftGuess) -> None:
        """Add a guess to the path."""
        self.tokens.append(guess.token)
        self.path.add(guess)

    def lengthen(self, guesses: Sequence[DraftGuess], path_min: float = 0.0) -> int:
        """Extend the path to `guesses`, as far as its probability stays at least path_min.

        Nothing is added unless `guesses` begins with the guesses of the path.

        Returns:
            The number of guesses added.
        """
        n = self.n_ahead
        if [guess.token for guess in guesses[:n]] == self.path.tokens:
            for guess in guesses[n : self.max_ahead]:
                if self.score * guess.confidence < path_min:
                    break
                self.add(guess)
        return self.n_ahead - n

    # -- branches

    def alternatives(self) -> Iterator[tuple[float, int, DraftGuess]]:
        """Yield (path probability, position, guess) for each second or third guess that has no branch yet."""
        begun = {(branch.fork, branch.guesses[0].token) for branch in self.branches}
        for i, guess in enumerate(self.path.guesses):
            if guess.second is None:
                continue
            at, score = self.n_committed + i, self.path.scores[i]
            for token, confidence in guess.others:
                if confidence > 0.0 and (at, token) not in begun:
                    yield score * confidence, at, DraftGuess(token, confidence)

    def branch(self, position: int, guess: DraftGuess) -> Branch:
        """Begin a branch at this position, with another guess than the path's."""
        branch = Branch(position, self.path.chain_after(position - self.n_committed), [guess])
        self.branches.append(branch)
        return branch

    def score_of(self, branch: Branch) -> float:
        """Return the probability of a branch, including the path up to its fork."""
        return self.path.scores[branch.fork - self.n_committed] * branch.scores[-1]

    @property
    def all_branches(self) -> list[Branch]:
        """Return all branches, including `taken`, which became the path but still has its own sequence."""
        return self.branches if self.taken is None else [*self.branches, self.taken]

    def take_drafts(self, drafter: str, td_us: int, *, all_of_it: bool = True) -> Iterator[Draft]:
        """Yield unpublished guesses as messages: those of the path, then those of branches.

        Args:
            drafter: Id of the drafter.
            td_us: Microseconds that a guess takes.
            all_of_it: False: yield only guesses of the path, and only if none of them is published yet.
        """
        while self.n_unpublished and (all_of_it or not self.path.n_published):
            yield self.path.take_draft(drafter, self.id, td_us)
        n_told = self.n_committed + self.path.n_published
        for branch in self.branches if all_of_it else ():
            if branch.fork <= n_told and branch.n_published < len(branch.guesses):
                yield branch.take_draft(drafter, self.id, td_us)

    # -- changes

    def _adopt_open(self, opened: Open, guesses: Sequence[DraftGuess] = ()) -> None:
        """Start anew with an Open message's tokens, and with these guesses, which count as unpublished."""
        self.n_opened += 1
        self.max_ahead, self.n_dropped = opened.max_ahead, opened.n_dropped
        self.sampling = _mirrored_sampling(opened.sampling)
        self.path = Branch(len(opened.tokens), opened.chain, guesses)
        self.tokens = [*opened.tokens, *self.path.tokens]
        self.branches: list[Branch] = []
        self.rows.clear()
        self.lost = False

    def _take_branch(self, fork: int, token: int) -> bool:
        """Make the branch that begins at `fork` with this token the path; return False if there is none."""
        found = (b for b in self.branches if b.fork == fork and b.guesses[0].token == token)
        branch = next(found, None)
        if branch is None:
            return False
        self.tokens[fork:] = branch.tokens
        path, n = self.path, fork - self.n_committed
        self.path = Branch(path.fork, path.chain_after(0), [*path.guesses[:n], *branch.guesses])
        self.path.n_published = min(path.n_published, n) + branch.n_published * (path.n_published >= n)
        if branch.seq == NO_SEQ:
            self.n_kv = min(self.n_kv, fork)
        else:
            self.n_kv, self.taken = branch.n_kv, branch
        self.branches = []
        return True

    def _judge_guesses(self, start: int, new: list[int]) -> None:
        """Add the path's guesses from index `start` to the first wrong one to `evidence`, to learn from them.

        Each guess is stored with the token that was committed at its position, from the list `new`.
        """
        if self.sampling.temperature <= 0.0:
            return
        for guess, token in zip(self.path.guesses[start:], new[start:], strict=False):
            if guess.likeliest is not None:
                self.evidence.append((guess, token))
            if guess.token != token:
                return


def _mirrored_sampling(sampling: SamplingParams) -> SamplingParams:
    """Return the sampling of guesses: the lead's, or greedy if its parameters make no sense."""
    sane = (
        (sampling.temperature == 0.0 or COLDEST <= sampling.temperature < math.inf)
        and sampling.top_k >= 0
        and 0.0 <= sampling.top_p < math.inf
        and 0.0 <= sampling.min_p <= 1.0
    )
    return sampling if sane else GREEDY
