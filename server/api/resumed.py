"""Streams that clients, such as llama-server's page, can read again by the name of their conversation.

A conversation has one stream at a time. A stored document, whose id is a digest of the name, contains the id
of the stream's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from server.errors import StoreError
from server.replies.kept import Json, StoredResponse
from server.replies.redis_names import digest
from server.replies.reply_log import ReplyLog
from server.replies.store import Owner

if TYPE_CHECKING:
    from server.api.answer import Answer
    from server.api.services import Services

PING = b": ping\n\n"
PING_S = 15
"""Seconds of silence before a ping is written to the log. Byte offsets in a stream include these pings."""
WATCH_S = 0.05  # seconds between two checks whether another lead has ended a stream
WATCHES = 100  # maximum checks: 5 s, in which that lead polls ten times for cancellations
SEPARATOR = "::"
"""Separates a conversation from its model in llama-server's names of streams."""


@dataclass(frozen=True, slots=True)
class NamedStream:
    """The stream of a conversation."""

    id: str  # id of the stream's log
    conversation: str
    started_at: int  # Unix seconds
    completed_at: int = 0  # 0 while it runs
    n_bytes: int = 0  # bytes of the whole stream; 0 while it runs

    def stored(self, id: str) -> StoredResponse:
        """Return the stream as a stored document with this id."""
        told = (self.id, self.conversation, self.started_at, self.completed_at, self.n_bytes)
        return StoredResponse({"id": id, "stream": told}, ())


def _place_of(conversation: str) -> str:
    """Return the id of the stored document that names the log of a conversation's stream."""
    return f"stream_{digest(conversation)}"


def _variants_of(conversation: str) -> str:
    """Return the id of the stored document that lists the longer names of a conversation.

    A longer name is the conversation's name followed by a model's name.
    """
    return f"variants_{digest(conversation)}"


async def begin_stream(
    services: Services, answer: Answer, conversation: str, recipe: Json | None = None
) -> ReplyLog:
    """End the conversation's earlier stream, begin to write an answer to a new log, and return the log.

    Args:
        services: The server.
        answer: The answer.
        conversation: The conversation's name.
        recipe: Data that another process needs to continue the answer; None: no process can.
    """
    owner = answer.owner
    with contextlib.suppress(StoreError):
        await end_stream(services, owner, conversation)
    begun = NamedStream(f"chat_{token_hex(24)}", conversation, int(time.time()))
    stream = {"conversation": conversation, "started_at": begun.started_at}
    log = services.replies.begin_log(owner, begun.id, recipe and {**recipe, "stream": stream})
    with contextlib.suppress(StoreError):
        await _keep_variant(services, owner, conversation)
    write_stream(services, answer, begun, log)
    await services.replies.flush()  # other leads must find the stream once the client has its first event
    return log


def write_stream(services: Services, answer: Answer, begun: NamedStream, log: ReplyLog) -> None:
    """Start a task that writes an answer, and pings, to `log`, the log of the stream `begun`."""
    owner, replies = answer.owner, services.replies

    def keep(stream: NamedStream) -> None:
        replies.put(owner, stream.stored(stream.id))
        replies.put(owner, stream.stored(_place_of(stream.conversation)))

    def keep_last() -> None:
        if not answer.stopped:
            keep(replace(begun, completed_at=int(time.time()), n_bytes=log.n_bytes))

    keep(begun)
    task = services.background.start(owner, begun.id, answer, log, keep_last)
    pings = asyncio.ensure_future(_ping(log))
    task.add_done_callback(lambda _: pings.cancel())


async def end_stream(services: Services, owner: Owner, conversation: str) -> None:
    """Cancel a conversation's reply if it runs, in this process or another, and forget its stream.

    Raises:
        BusyError: The server shuts down before another lead has ended the reply.
    """
    stream = await stream_of(services, owner.salt, conversation)
    if stream is None:
        return
    if not await services.background.cancel(owner.salt, stream.id) and not stream.completed_at:
        for _ in range(WATCHES):
            services.places.check_open()
            if not await services.replies.cancel(owner.salt, stream.id):  # repeated: the writer may change
                break
            await asyncio.sleep(WATCH_S)
    await services.replies.delete(owner, stream.id)
    await services.replies.delete(owner, _place_of(conversation))


async def stream_of(services: Services, salt: str, conversation: str) -> NamedStream | None:
    stored = await services.replies.get(salt, _place_of(conversation))
    return NamedStream(*stored.response["stream"]) if stored else None


async def streams_of(services: Services, salt: str, conversation: str) -> Sequence[NamedStream]:
    """Return the streams of a conversation: under its name alone, and under its name with each model."""
    variants = await services.replies.get(salt, _variants_of(conversation))
    names: list[str] = [conversation, *(variants.response["names"] if variants else ())]
    found = [await stream_of(services, salt, name) for name in names]
    return [stream for stream in found if stream is not None]


async def _keep_variant(services: Services, owner: Owner, conversation: str) -> None:
    """Store a name that ends with a model's name, so that the name without it finds the stream as well."""
    plain, separator, _ = conversation.partition(SEPARATOR)
    if not separator:
        return
    id = _variants_of(plain)
    known = await services.replies.get(owner.salt, id)
    names: list[Any] = [*(known.response["names"] if known else ())]
    if conversation not in names:
        services.replies.put(owner, StoredResponse({"id": id, "names": [*names, conversation]}, ()))


async def _ping(log: ReplyLog) -> None:
    while True:
        n = log.n_bytes
        await asyncio.sleep(PING_S)
        if log.n_bytes == n and not log.ended:
            log.append(PING)
