"""Give calls ids in the forms that chat templates take. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from server.text.capabilities import Message

_SHORT_ID = 9


def with_ids(messages: Sequence[Message]) -> Iterator[Message]:
    """Give calls without an id new ids, and results without an id that of the first unanswered call."""
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
    """Return the id if it has nine letters and digits, else one of that form derived from it."""
    fits = len(id) == _SHORT_ID and id.isascii() and id.isalnum()
    return id if fits else hashlib.sha256(id.encode()).hexdigest()[:_SHORT_ID]


def derived(id: str, what: str) -> str:
    """Return hexadecimal digits derived from `what` and an id that nobody can guess."""
    return hashlib.sha256(f"{id} {what}".encode()).hexdigest()
