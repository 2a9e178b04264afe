"""Decide which drafters guess for a session, by what they have contributed. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from server.sampling.noise import mix
from server.speculation.account import made_good_after
from server.speculation.hits import MEAN, WORD

MAX_PER_SESSION = 3  # drafters per session: further ones mostly repeat the others' guesses
# Minimum difference of two drafters' shares of right guesses, else they count as equal: at least two standard
# errors of a share of 64 tokens. Half: equal drafters keep replacing each other, each with a prompt to read;
# twice: a drafter that guesses one third keeps its place, though another one would guess two thirds.
APART = 0.2


class Yield:
    """The fraction of recent tokens that one drafter guessed right.

    Only about the latest `window` tokens committed in the drafter's sessions count. share() blends in an
    assumed fraction, with the weight of WORD tokens.
    """

    __slots__ = ("_n_waited", "_window", "missed", "n_right", "n_tokens", "right")

    def __init__(self, window: int) -> None:
        self._window = window
        self.right = self.missed = 0.0
        self._n_waited = 0
        # up to where the session is counted: number of its tokens (too large while the drafter still reads),
        # and number of the drafter's right guesses
        self.n_tokens = self.n_right = 0

    def observe(self, n_right: int, n_tokens: int) -> None:
        """Count n_tokens committed tokens, of which the drafter had guessed n_right."""
        keep = max(0.0, 1.0 - n_tokens / self._window)
        self.right = keep * self.right + n_right
        self.missed = keep * self.missed + n_tokens - n_right
        self._n_waited = 0

    def wait(self, n_tokens: int) -> None:
        """Count n_tokens committed while the drafter did not have the session.

        After made_good_after(missed) such tokens the counts are cleared. The drafter is then tried again,
        since it may have changed.
        """
        self._n_waited += n_tokens
        if made_good_after(self.missed) < self._n_waited:
            self.right = self.missed = 0.0

    def share(self, assumed: float = MEAN) -> float:
        """Return the fraction of tokens that the drafter guesses right; `assumed` while none is counted."""
        return (WORD * assumed + self.right) / (WORD + self.right + self.missed)


def assign(session: int, shares: Mapping[str, float], *, taken: int = 0) -> list[str]:
    """Return at most MAX_PER_SESSION - `taken` drafters: those with the best shares.

    Among drafters with about equal shares, sessions are spread evenly, and a session always gets the same
    ones (rendezvous hashing: Thaler, Ravishankar 1998).

    Args:
        session: Id of the session.
        shares: Fraction of the session's tokens that each drafter is expected to guess right, by id.
        taken: Number of drafters that the session has already.
    """
    ranked = sorted(shares, key=lambda id: (-round(shares[id] / APART), _weight(session, id)))
    return ranked[: max(0, MAX_PER_SESSION - taken)]


def _weight(session: int, id: str) -> int:
    weight = mix(session)
    for byte in id.encode():
        weight = mix(weight ^ byte)
    return weight
