"""Names, times and limits of what RedisStore keeps: every key of a reply in Redis is named here.

    duo:{pool}:reply:<owner>:<id>          a response or a conversation, as JSON
    duo:{pool}:reply:<owner>:<id>:log      stream: its events, joined in entries
    duo:{pool}:reply:<owner>:<id>:writer   lease of the lead that writes the log: its term, CANCEL or LEFT
    duo:{pool}:reply:<owner>:<id>:awaited  exists while the log may still grow, also without a writer
    duo:{pool}:reply:<owner>:<item>:in     set: the ids of the responses with this item
    duo:{pool}:reply:<tenant>:held         hash: what an API key holds, "<owner>:<id>" to "<µs> <bytes>"
    duo:{pool}:reply:open:<group>          hash: "<owner>:<id>" of replies that leads of a group may take up
    duo:{pool}:reply:leads:<group>         set: names of these leads
    duo:{pool}:reply:lead:<group>:<name>   exists while this lead lives

<owner> and <tenant> are digests: no client can choose another client's name, and no name reveals a salt.
An entry's id is "<term * 2^40 + events>-0", where <events> counts the log's events up to the end of this
entry. A log ends with an entry whose id has "-1" instead of "-0". The first writer of a log has the term 0. A
process that takes the log up begins the next term by an entry without events. Ids only grow, so Redis then
refuses all entries of earlier terms. Two processes never write one log: of two that take it up, one is
refused. "<owner>:<id>" is called a scoped id.

All keys have a time to live.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

EVENTS = b"c"  # field of an entry: its events
END = b"e"  # field of the entry that ends a log
STATES = b"s"  # data needed to continue after these events, a JSON value on each line
RECIPE = b"r"  # in the first entry: data that another lead needs to continue the reply
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
        return f"duo:{{{self.pool}}}:reply:{scoped_id_of(salt, id)}"

    def log(self, salt: str, id: str) -> str:
        return f"{self.response(salt, id)}:log"

    def writer(self, salt: str, id: str) -> str:
        return f"{self.response(salt, id)}:writer"

    def awaited(self, salt: str, id: str) -> str:
        return f"{self.response(salt, id)}:awaited"

    def open(self, group: str) -> str:
        return f"duo:{{{self.pool}}}:reply:open:{digest(group)}"

    def leads(self, group: str) -> str:
        return f"duo:{{{self.pool}}}:reply:leads:{digest(group)}"

    def lead(self, group: str, name: str) -> str:
        return f"duo:{{{self.pool}}}:reply:lead:{digest(group)}:{name}"

    def holders(self, salt: str, item_id: str) -> str:
        """Return the key of the set of responses with this item. Its id is hashed: clients choose it."""
        return f"{self.response(salt, digest(item_id))}:in"

    def holders_beside(self, scoped_id: str, item_id: str) -> str:
        """Return the key that holders() returns, given a response's scoped id instead of a salt."""
        return f"{self.at(f'{owner_of(scoped_id)}:{digest(item_id)}')}:in"

    def held(self, tenant: str) -> str:
        return f"duo:{{{self.pool}}}:reply:{digest(tenant)}:held"

    def at(self, scoped_id: str) -> str:
        """Return the key of the response with a scoped id."""
        return f"duo:{{{self.pool}}}:reply:{scoped_id}"


def scoped_id_of(salt: str, id: str) -> str:
    return f"{digest(salt)}:{id}"


def owner_of(scoped_id: str) -> str:
    """Return the owner (the digest of a salt) in a scoped id."""
    return scoped_id.partition(":")[0]


def entry_id(term: int, n_events: int, after: int = 0) -> str:
    """Return the id of the entry that raises a log to n_events events; after=1: of the entry at its end."""
    return f"{(term << _TERM_SHIFT) + n_events}-{after}"


def of_entry(id: bytes) -> tuple[int, int]:
    """Return the term and the number of events encoded in an entry's id."""
    number = int(id.partition(b"-")[0])
    return number >> _TERM_SHIFT, number & ((1 << _TERM_SHIFT) - 1)


def is_id(id: str) -> bool:
    """Return True if this can be the id of a response. Make keys only of such ids."""
    return _ID.fullmatch(id) is not None


def digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
