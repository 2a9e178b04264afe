"""Names, times and limits of what RedisStore keeps: every key of a reply in Redis is named here.

    duo:{pool}:reply:<owner>:<id>          a response or a conversation, as JSON
    duo:{pool}:reply:<owner>:<id>:log      stream: its events, joined in entries
    duo:{pool}:reply:<owner>:<id>:writer   there while a lead writes the log: its term; or CANCEL, or LEFT
    duo:{pool}:reply:<owner>:<id>:awaited  there while the log may still grow, also without a writer
    duo:{pool}:reply:<owner>:<item>:in     set: the ids of the responses with this item
    duo:{pool}:reply:<tenant>:held         hash: what an API key holds, "<owner>:<id>" to "<µs> <bytes>"
    duo:{pool}:reply:open:<kin>            hash: "<owner>:<id>" of replies that leads of a kin may take up
    duo:{pool}:reply:leads:<kin>           set: names of these leads
    duo:{pool}:reply:lead:<kin>:<name>     there while this lead lives

<owner> and <tenant> are digests: no client can choose another's name, and no name reveals a salt.
An entry's id is "<term * 2^40 + events>-0", where <events> counts the log's events up to the end of this
entry. The end of a log is such an entry with "-1". The first writer of a log has the term 0. A process that
takes the log up begins the next term by an entry without events. Ids only grow, so Redis then refuses all
entries of earlier terms. Two processes never write one log: of two that take it up, one is refused.

All keys have a time to live.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

EVENTS = b"c"  # field of an entry: its events
END = b"e"  # field of the entry that ends a log
STATES = b"s"  # what going on after these events needs, a JSON value on each line
RECIPE = b"r"  # in the first entry: how another lead can go on with the reply
TAKEN = b"t"  # in the entry that begins a term
CANCEL = b"x"  # asks the writer to cancel its reply
LEFT = b"l"  # the writer has left the log to others
_TERM_SHIFT = 40  # a shift: a log has fewer than 2^40 events
_ID = re.compile(r"[A-Za-z]{1,8}_[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class ReplyNames:
    """Names of keys in one pool."""

    pool: str

    def response(self, salt: str, id: str) -> str:
        return f"duo:{{{self.pool}}}:reply:{place_of(salt, id)}"

    def log(self, salt: str, id: str) -> str:
        return f"{self.response(salt, id)}:log"

    def writer(self, salt: str, id: str) -> str:
        return f"{self.response(salt, id)}:writer"

    def awaited(self, salt: str, id: str) -> str:
        return f"{self.response(salt, id)}:awaited"

    def open(self, kin: str) -> str:
        return f"duo:{{{self.pool}}}:reply:open:{digest(kin)}"

    def leads(self, kin: str) -> str:
        return f"duo:{{{self.pool}}}:reply:leads:{digest(kin)}"

    def lead(self, kin: str, name: str) -> str:
        return f"duo:{{{self.pool}}}:reply:lead:{digest(kin)}:{name}"

    def holders(self, salt: str, item_id: str) -> str:
        """Return the key of the set of responses with this item; its id, which clients choose, is hashed."""
        return f"{self.response(salt, digest(item_id))}:in"

    def holders_beside(self, place: str, item_id: str) -> str:
        """Return the key that holders() returns, given a response's place_of() instead of a salt."""
        return f"{self.at(f'{owner_of(place)}:{digest(item_id)}')}:in"

    def held(self, tenant: str) -> str:
        return f"duo:{{{self.pool}}}:reply:{digest(tenant)}:held"

    def at(self, place: str) -> str:
        """Return the key of the response at a place that place_of() returned."""
        return f"duo:{{{self.pool}}}:reply:{place}"


def place_of(salt: str, id: str) -> str:
    return f"{digest(salt)}:{id}"


def owner_of(place: str) -> str:
    """Return the owner in a place "<owner>:<id>", as place_of() returns it: the digest of a salt."""
    return place.partition(":")[0]


def entry_id(term: int, n_events: int, after: int = 0) -> str:
    """Return the id of the entry with which the log has this many events; `after`: 1 for the log's end."""
    return f"{(term << _TERM_SHIFT) + n_events}-{after}"


def of_entry(id: bytes) -> tuple[int, int]:
    """Return the term and the number of events in an id of entry_id()."""
    number = int(id.partition(b"-")[0])
    return number >> _TERM_SHIFT, number & ((1 << _TERM_SHIFT) - 1)


def is_id(id: str) -> bool:
    """Return True if this can be the id of a response; no key may be made of any other text."""
    return _ID.fullmatch(id) is not None


def digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
