"""Give calls ids in the forms that chat templates take. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from server.text.capabilities import Message

_SHORT_ID = 9


def with_ids(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with missing ids filled in.

    A call without an id gets a new one. A result without an id gets the id of the first unanswered call.
    """
    n, open = 0, list[str]()
    for message in messages:
        new = dict(message)
        if calls := message.get("tool_calls"):
            new["tool_calls"] = [
                {**one, "id": one.get("id") or f"call{n + i:05}"} for i, one in enumerate(calls)
            ]
            n += len(calls)
            open = [one["id"] for one in new["tool_calls"]]
        elif message["role"] == "tool":
            new["tool_call_id"] = id = message.get("tool_call_id") or next(iter(open), f"call{n:05}")
            open = [one for one in open if one != id]
        yield new


def short_id(id: str) -> str:
    """Return the id if it consists of nine letters or digits; else nine hexadecimal digits of its hash."""
    fits = len(id) == _SHORT_ID and id.isascii() and id.isalnum()
    return id if fits else hashlib.sha256(id.encode()).hexdigest()[:_SHORT_ID]


def derived(id: str, what: str) -> str:
    """Return a hash of `id` and `what`, 64 hexadecimal digits. `id` must be one that nobody can guess."""
    return hashlib.sha256(f"{id} {what}".encode()).hexdigest()
