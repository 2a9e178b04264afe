"""Which drafters guess for a session. Pure: the lead decides, drafters obey."""

from __future__ import annotations

import math
from collections.abc import Mapping

from server.sampling.noise import mix

MOST = 3  # drafters per session: more agree more often than they add


def speed(td_s: float, acceptance: float) -> float:
    """Right guesses per second in a row, always positive. td_s: seconds per guess, 0, unknown, counts as a
    millisecond; acceptance: share of the guesses that come true."""
    acceptance = min(max(acceptance, 0.01), 0.99)
    return acceptance / ((1 - acceptance) * max(td_s or 1e-3, 1e-6))


def assign(session: int, speeds: Mapping[str, float], *, taken: int = 0) -> list[str]:
    """The best of the drafters with these speeds, at most MOST with the `taken` ones. Among about equals the
    choice is spread evenly, and stable for a session (rendezvous hashing: Thaler, Ravishankar 1998)."""
    ranked = sorted(speeds, key=lambda id: (-round(math.log2(speeds[id])), _weight(session, id)))
    return ranked[: max(0, MOST - taken)]


def _weight(session: int, id: str) -> int:
    weight = mix(session)
    for byte in id.encode():
        weight = mix(weight ^ byte)
    return weight
