"""Which drafters guess for a session. Pure: the lead decides, drafters obey."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from server.sampling.noise import mix

MOST = 3  # drafters per session: more agree more often than they add


@dataclass(frozen=True, slots=True)
class AssignableDrafter:
    """free: sessions it will still take; td_s: seconds per guess, 0 unknown; acceptance: share of its guesses
    that come true."""

    id: str
    free: int
    td_s: float
    acceptance: float

    @property
    def speed(self) -> float:
        """Right guesses per second in a row, always positive; an unknown time counts as a millisecond."""
        acceptance = min(max(self.acceptance, 0.01), 0.99)
        return acceptance / ((1 - acceptance) * max(self.td_s or 1e-3, 1e-6))


def assign(session: int, candidates: Sequence[AssignableDrafter], *, taken: int = 0) -> list[str]:
    """The best of those with room, at most MOST with the `taken` ones. Among about equals the choice is
    spread evenly, and stable for a session (rendezvous hashing: Thaler, Ravishankar 1998)."""
    free = [candidate for candidate in candidates if candidate.free > 0]
    ranked = sorted(free, key=lambda c: (-round(math.log2(c.speed)), _weight(session, c.id)))
    return [candidate.id for candidate in ranked[: max(0, MOST - taken)]]


def _weight(session: int, id: str) -> int:
    weight = mix(session)
    for byte in id.encode():
        weight = mix(weight ^ byte)
    return weight
