"""Estimate how much faster good guesses could make the lead at best. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from server.speculation.gain import chain, reached
from server.speculation.hits import TRUST
from server.speculation.step_times import SAVES

# Assumed share of right guesses of a sure source. With 0.9, guesses may pay for up to 38 sessions where a row
# adds a tenth of the first row's time. Twice the wrong guesses (0.8): up to 22; half (0.95): up to 54.
SURE_SHARE = TRUST
PAYS = 1 + SAVES  # minimum potential() for guesses to pay: messages and wrong guesses use up a smaller gain


def potential(seconds: Sequence[float], n_sessions: int, td_s: float = 0.0) -> float:
    """Return the tokens per second that good guesses can reach, relative to those of undrafted steps.

    A good guess is right with probability SURE_SHARE.

    Args:
        seconds: seconds[n] is the time of a decode of n rows.
        n_sessions: Number of sessions, each with one row in an undrafted step.
        td_s: Seconds of a round of guesses, one for each session.

    Returns:
        A factor; 1 if no guess pays, or no time is known.
    """
    last = len(seconds) - 1
    if not 0 < n_sessions <= last or not seconds[n_sessions]:
        return 1.0
    tokens, brought = [float(n_sessions)], chain(SURE_SHARE, 1 + (last - n_sessions) // n_sessions)
    for depth in range(1, len(brought)):
        each = brought[depth] - brought[depth - 1]
        tokens += [tokens[-1] + each * k for k in range(1, n_sessions + 1)]
    taken_s = [s + -(-k // n_sessions) * td_s for k, s in enumerate(seconds[n_sessions:])]
    return reached(tokens, taken_s) * seconds[n_sessions] / n_sessions
