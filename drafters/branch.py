"""An alternative to a session's path of guesses, from one position on. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from drafters.guessing import DraftGuess
from server.speculation.wire.messages import MAX_NODES, chain_next

NO_SEQ = -1


class Branch:
    """Guesses after the session's first `fork` tokens, instead of the path's. The first n_kv tokens, counted
    from the session's first, are in the KV sequence `seq`."""

    def __init__(self, fork: int, chain: int, first: DraftGuess) -> None:
        """chain: the chain hash before the first guess."""
        self.fork = fork
        self.guesses: list[DraftGuess] = []
        self.chains = [chain]  # before the first guess, and after each
        self.seq = NO_SEQ
        self.n_kv = fork
        self.n_published = 0
        self.score = 1.0  # the probability of these guesses, given all before the fork
        self.add(first)

    @property
    def tokens(self) -> list[int]:
        return [guess.token for guess in self.guesses]

    @property
    def end(self) -> int:
        """Tokens of the session if this comes true."""
        return self.fork + len(self.guesses)

    @property
    def pending(self) -> list[int]:
        """Tokens to evaluate before the next guess."""
        return [guess.token for guess in self.guesses[self.n_kv - self.fork :]]

    def add(self, guess: DraftGuess) -> None:
        self.guesses.append(guess)
        self.chains.append(chain_next(self.chains[-1], guess.token))
        self.score *= guess.confidence

    def unpublished(self) -> tuple[int, int, Sequence[DraftGuess]]:
        """(position, chain hash before it, guesses) of the unpublished part, which is published now."""
        start = self.n_published
        guesses = self.guesses[start : start + MAX_NODES]
        self.n_published += len(guesses)
        return self.fork + start, self.chains[start], guesses
