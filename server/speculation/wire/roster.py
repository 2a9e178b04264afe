"""Keep the roster of processes on the bus, from their descriptions (cards). Pure: the bus does the I/O."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from pydantic import TypeAdapter

from server.speculation.wire.messages import REFUSE_VERSION
from server.speculation.wire.presence import MAX_BLOCKS, Presence, Role

MAX_CARD_BYTES = 16 * MAX_BLOCKS  # a checksum takes at most 11 of them
MAX_PEERS = 256  # members of the other role that one process looks at

_PRESENCE = TypeAdapter(Presence)


def member_name(role: Role, id: str) -> str:
    """Return a process's name on the bus. Roles contain no colon, so an id cannot fake another role."""
    return f"{role}:{id}"


def write_card(presence: Presence) -> bytes:
    """Return a description as JSON."""
    return orjson.dumps(presence)


def read_card(member: str, card: bytes) -> Presence | None:
    """Return a member's description, None if it is invalid, out of bounds, or of another member."""
    if len(card) > MAX_CARD_BYTES:
        return None
    try:
        fields = orjson.loads(card)
        presence = _PRESENCE.validate_python({"wire": REFUSE_VERSION} | fields)
    except (ValueError, TypeError):  # no JSON, no object, no Presence
        return None
    return presence if member_name(presence.role, presence.id) == member else None


class Roster:
    """Descriptions (cards) of the processes of one role on the bus, by name. Each card is parsed once."""

    def __init__(self, role: Role) -> None:
        self._prefix = member_name(role, "")
        self._cards: dict[str, tuple[bytes, Presence | None]] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of members with a card at the last update, unreadable cards included."""
        return list(self._cards)

    def newcomers(self, listed: set[str]) -> list[str]:
        """Return the names in `listed` that are new and of the roster's role, as many as MAX_PEERS allows."""
        new = sorted(name for name in listed - self._cards.keys() if name.startswith(self._prefix))
        return new[: MAX_PEERS - len(self._cards)]

    def update(self, cards: Mapping[str, bytes | None]) -> tuple[Presence, ...]:
        """Replace the roster by these cards (None: gone), and return the valid ones, ordered by name."""
        before = self._cards
        self._cards = {}
        for name, card in sorted(cards.items()):
            if card is not None:
                known = before.get(name)
                self._cards[name] = known if known and known[0] == card else (card, read_card(name, card))
        return tuple(presence for _, presence in self._cards.values() if presence is not None)
