"""The engine's slots by number: each is the place of one reply at a time.

There may be more KV sequences than slots, for conversations that rest. A slot is the sequence that its latest
session had.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.engine.session import Session


class SlotNumbers:
    """For the engine's thread."""

    def __init__(self, n_slots: int) -> None:
        """Args: n_slots: as many as there are replies at a time."""
        self._seqs = list(range(n_slots))
        self._latest: list[Session | None] = [None] * n_slots
        self._order = list(range(n_slots))  # numbers, the one that waits longest for a session first

    def __len__(self) -> int:
        return len(self._seqs)

    def seq(self, number: int) -> int:
        """Return the KV sequence of a slot."""
        return self._seqs[number]

    def latest(self, number: int) -> Session | None:
        """Return the session that a slot has, or had last."""
        return self._latest[number]

    def begin(self, session: Session, active: Sequence[Session]) -> int:
        """Give a session, which has a KV sequence, a slot; returns its number.

        Args:
            session: It has a KV sequence.
            active: All sessions that have a sequence.
        """
        if session.seq in self._seqs:
            number = self._seqs.index(session.seq)
        else:
            busy = {other.seq for other in active if other is not session}
            number = next((one for one in self._order if self._seqs[one] not in busy), self._order[0])
            self._seqs[number] = session.seq
        self._order.remove(number)
        self._order.append(number)
        self._latest[number] = session
        return number
