"""Number the engine's slots; each holds one reply at a time.

There may be more KV sequences than slots, for idle conversations. A slot has the sequence of its latest
session.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.engine.session import Session


class SlotNumbers:
    """Maps the number of each slot to its sequence and latest session. For the engine's thread."""

    def __init__(self, n_slots: int) -> None:
        """Begin with n_slots free slots."""
        self._seqs = list(range(n_slots))
        self._latest: list[Session | None] = [None] * n_slots
        self._order = list(range(n_slots))  # numbers of slots, the one begun longest ago first

    def __len__(self) -> int:
        return len(self._seqs)

    def seq(self, number: int) -> int:
        """Return the KV sequence of a slot."""
        return self._seqs[number]

    def latest(self, number: int) -> Session | None:
        """Return the slot's running or latest session, None if it had none."""
        return self._latest[number]

    def begin(self, session: Session, active: Sequence[Session]) -> int:
        """Give a session a slot, and return its number.

        Args:
            session: A session that has a KV sequence.
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
