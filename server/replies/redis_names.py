"""Names, times and limits of what RedisStore keeps: every key of a reply in Redis is named here.

    duo:{pool}:reply:<owner>:<id>          a response or a conversation, as JSON
    duo:{pool}:reply:<owner>:<id>:log      stream: its events, joined in entries
    duo:{pool}:reply:<owner>:<id>:writer   there while a lead writes the log; CANCEL asks it to stop
    duo:{pool}:reply:<owner>:<item>:in     set: the ids of the responses with this item
    duo:{pool}:reply:<tenant>:held         hash: what an API key holds, "<owner>:<id>" to "<µs> <bytes>"

<owner> and <tenant> are digests: no client can choose another's name, and no name reveals a salt.
An entry's id is "<events>-0", where <events> counts the log's events up to the end of this entry. The end of
a log is an entry "<events>-1". All keys have a time to live.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

EVENTS = b"c"  # field of an entry: its events
END = b"e"  # field of the entry that ends a log
WRITING = b"w"
CANCEL = b"x"
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


def is_id(id: str) -> bool:
    """Return True if this can be the id of a response; no key may be made of any other text."""
    return _ID.fullmatch(id) is not None


def digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
