"""Guesses in a row: a session's path, or an alternative to it from one position on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from server.sampling.draft_token import DraftGuess
from server.speculation.wire.messages import MAX_NODES, ROOT, Draft, chain_next

NO_SEQ = -1


class Branch:
    """Guesses after the session's first `fork` tokens: the path, or an alternative to it.

    An alternative has its own KV sequence `seq`, which contains the first n_kv tokens of its text.
    """

    def __init__(self, fork: int, chain: int, guesses: Sequence[DraftGuess] = ()) -> None:
        """Begin a branch with these guesses.

        Args:
            fork: Number of tokens before the first guess.
            chain: Chain hash of these tokens.
            guesses: The first guesses.
        """
        self.fork = fork
        self.guesses: list[DraftGuess] = []
        self._chains = [chain]  # chain hashes before the first guess and after later ones, made on demand
        self.scores = [1.0]  # probability that the first 0, 1, … guesses are all right
        self.seq = NO_SEQ
        self.n_kv = fork
        self.n_published = 0
        for guess in guesses:
            self.add(guess)

    @property
    def tokens(self) -> list[int]:
        return [guess.token for guess in self.guesses]

    @property
    def end(self) -> int:
        """Return the length of the text up to the branch's end."""
        return self.fork + len(self.guesses)

    @property
    def pending(self) -> list[int]:
        """Return the tokens to evaluate before the next guess."""
        return [guess.token for guess in self.guesses[self.n_kv - self.fork :]]

    def add(self, guess: DraftGuess) -> None:
        self.guesses.append(guess)
        self.scores.append(self.scores[-1] * guess.confidence)

    def chain_after(self, n: int) -> int:
        """Return the chain hash of the text up to and including the first n guesses."""
        chains = self._chains
        for guess in self.guesses[len(chains) - 1 : n]:
            chains.append(chain_next(chains[-1], guess.token))
        return chains[n]

    def confirm(self, n: int) -> None:
        """Move the fork past the first n guesses, because the lead has committed them."""
        self.fork += n
        self.n_published = max(0, self.n_published - n)
        self._chains = [self.chain_after(n)]
        del self.guesses[:n]
        self.scores = list(accumulate((guess.confidence for guess in self.guesses), mul, initial=1.0))

    def take_draft(self, drafter: str, session: int, td_us: int) -> Draft:
        """Return the first MAX_NODES unpublished guesses as a message, and count them as published.

        Args:
            drafter: Id of the drafter.
            session: Id of the session.
            td_us: Microseconds that a guess takes.
        """
        start = self.n_published
        guesses = self.guesses[start : start + MAX_NODES]
        self.n_published += len(guesses)
        return Draft(
            drafter,
            session,
            self.fork + start,
            self.chain_after(start),
            td_us,
            tuple(range(ROOT, len(guesses) - 1)),
            tuple(guess.token for guess in guesses),
            bytes(round(255 * min(1.0, max(0.0, guess.confidence))) for guess in guesses),  # nan is 0
        )
