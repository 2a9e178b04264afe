"""Base class of answers to one request in the format of any API, sent whole or in chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import ClassVar

import orjson

from server.api import problem
from server.api.choices import ReplyChoice, growing, grown
from server.api.generation_fields import GenerationFields
from server.api.partial_answer import Json, Note, PartialAnswer
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.api.stages.submit import submit
from server.engine.events import Event
from server.engine.request_account import tenant
from server.errors import DuoError
from server.replies.reply_log import ReplyLog
from server.replies.store import Owner

MAX_LOG_BYTES = 16 << 20
"""Maximum bytes of a reply's log.

It is four times llama-server's limit, because the events of /v1/responses are about four times as long.
"""
LOSS = b": this reply can no longer be stored\n\n"
_LINE_ENDS = {mark.encode(): f"\\u{ord(mark):04x}".encode() for mark in "\u0085\u2028\u2029"}
"""JSON escapes of characters at which httpx, and so huggingface_hub, ends a line within an event."""


def json_line(payload: object) -> bytes:
    """Return an object as JSON without characters that a client may treat as a line end."""
    line = orjson.dumps(payload)
    if line.isascii():  # most lines are; the three searches below take a microsecond
        return line
    for mark, escaped in _LINE_ENDS.items():
        line = line.replace(mark, escaped)
    return line


def sse(payload: object) -> bytes:
    """Return an object as a server-sent event."""
    return b"data: " + json_line(payload) + b"\n\n"


class Answer(ABC):
    """The answer to one request.

    Call begin(), then whole() or chunks(), and cancel() when the client is gone. Or only call write_to().
    """

    keep_alive: ClassVar[tuple[str, str] | None] = None
    """Name and data of the event that keeps a silent stream open; None: send a comment instead."""

    def __init__(
        self, id: str, services: Services, body: GenerationFields, prompts: Sequence[Prompted]
    ) -> None:
        """Submit one request to the engine for each reply to a prompt. Raises Generator.submit()'s errors."""
        self._id = id
        self._services = services
        self._prompts = prompts
        # 0 (no pacing) with timings_per_token, because timings are known for whole steps only
        self._frame_s = 0.0 if body.timings_per_token else services.frame_s
        self._choices = submit(services, body, prompts)
        for choice in self._choices:
            choice.name_calls(id)
        self._begun: PartialAnswer | None = None  # the start of this answer, sent by another process
        self._opened = self._closed = False  # first events were sent; last event was sent
        self._n_noted = [0] * len(self._choices)  # by choice: number of tokens that earlier states describe
        self._abandoned = False  # True if another process continues the answer
        # events of the first choice that begin() has read and see() has not yet processed
        self._next: Sequence[Event] = ()
        self.stopped = False  # True after stop()
        self.forgotten = False  # True if the owner deleted the answer, so that it is not stored any more
        self._loss_sent = False
        self.owner = Owner(body.salt, tenant())
        self.refusal: DuoError | None = None  # error of write_to() before the engine started the request

    def stop(self) -> None:
        """Cancel the replies at their owner's request; the stream then ends without an error."""
        self.stopped = True
        self.cancel()

    def abandon(self) -> None:
        """Cancel the replies without sending a last event: another process continues this answer."""
        self._abandoned = self.forgotten = True
        self.cancel()

    def cancel(self) -> None:
        for choice in self._choices:
            choice.generation.cancel()

    def recipe(self, given: Json) -> Json | None:
        """Return the data that another process needs to continue this answer.

        Return None if no other process can continue it. given: The request's body.
        """
        return None

    async def begin(self) -> None:
        """Wait until the engine starts the request. If the request fails before that, raise its error."""
        first = self._choices[0]
        begun, *self._next = await anext(first.events)
        first.see([begun])
        first.check()

    async def whole(self) -> bytes:
        """Wait until all replies have ended, and return the answer as JSON."""
        await grown(self._choices)
        self._remember_replies()
        whole = self._whole_json()
        await self._flush_store()
        return whole

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the stream in chunks of one or more server-sent events. An error is the last event."""
        try:
            if self._frame_s:
                for choice in self._choices:
                    choice.spread(self._frame_s)
            if not self._opened and (opening := b"".join(self._opening_events())):
                yield opening
            self._choices[0].see(self._next)
            async for choice in growing(self._choices):
                if news := b"".join(self._new_events(choice)):
                    yield news
                choice.check()
                choice.wake()
            self._remember_replies()
            closing = b"".join(self._closing_events())
            await self._flush_store()
            self._closed = True
            yield closing
        except DuoError as error:
            self._closed = True
            yield self._failure_event(error)
        except Exception as error:
            self._closed = True
            yield self._failure_event(problem.defect(f"the stream {self._id}", error))

    async def write_to(self, log: ReplyLog, keep: Callable[[], None] | None = None) -> None:
        """Call begin(), write all events to a log, and end the log. Raises nothing.

        After abandon(), the log is not ended, because another process writes it.

        Args:
            log: The log.
            keep: Called just before the log ends.
        """
        try:
            if log.guarded:
                self._frame_s = 0.0  # readers get all acknowledged events at once, so pacing has no effect
            await self._begin_writing()
            if self._begun is not None:
                await self._replay(self._begun)
            async with aclosing(self.chunks()) as chunks:
                async for chunk in chunks:
                    self._append(log, chunk)
        except DuoError as error:
            self._append_failure(log, error)
        except Exception as error:
            self._append_failure(log, problem.defect(f"the reply {self._id}", error))
        finally:
            self.cancel()
            if not self._abandoned:
                if keep is not None:
                    keep()
                await self._flush_store()
                await self._services.replies.flush()
                log.end()

    async def _replay(self, begun: PartialAnswer) -> None:
        """Restore the state after the last stored event of `begun`, without sending any event again."""
        if begun.opened:
            list(self._opening_events())
            for choice, before in zip(self._choices, begun.choices, strict=True):
                choice.replay(before)
                if before.ended and not choice.index:
                    choice.see(self._next)
                    self._next = ()
                while before.ended and not choice.ended:
                    choice.see(await anext(choice.events))
                list(self._new_events(choice))
            self._n_noted = [choice.n_tokens for choice in self._choices]
        self._opened = begun.opened
        self._number_from(begun.n_events)

    def _number_from(self, n: int) -> None:
        """Set the number of the next event to n, if events have numbers."""
        return

    async def _begin_writing(self) -> None:
        try:
            await self.begin()
        except DuoError as error:
            self.refusal = error
            raise

    def _append(self, log: ReplyLog, chunk: bytes) -> None:
        if not chunk or self._abandoned:
            return
        # append even above the limit, so that event numbers have no gap
        log.append(chunk, self._state() if log.guarded else b"")
        if log.n_bytes > MAX_LOG_BYTES:
            raise DuoError(f"the reply is too long to be stored: its events exceed {MAX_LOG_BYTES} bytes")
        if log.lost and (warning := self._loss_event()):
            log.append(warning)

    def _append_failure(self, log: ReplyLog, error: DuoError) -> None:
        self._closed = True
        self._append(log, self._failure_event(error))

    def _state(self) -> bytes:
        """Return the state to store with the next chunk, so that another process can continue after it.

        It is JSON, and describes only the tokens since the last call. The other process also needs the states
        that earlier calls returned.
        """
        notes = list[Note]()
        requests = (request for prompt in self._prompts for request in prompt.requests)
        for i, (choice, request) in enumerate(zip(self._choices, requests, strict=True)):
            n_new = choice.n_tokens - len(request.begun)
            mu = request.mus[n_new - 1] if request.mus and n_new > 0 else request.mu
            note = choice.note_after(self._n_noted[i], mu)
            self._n_noted[i] = choice.n_tokens
            if note[1] or note[4]:
                notes.append(note)
        state = {"choices": notes} if notes else {}
        return orjson.dumps({**state, "closed": True} if self._closed else state)

    def _loss_event(self) -> bytes:
        """Return a warning that the log can no longer be stored. Later calls return b""."""
        told, self._loss_sent = self._loss_sent, True
        return b"" if told else LOSS

    async def _flush_store(self) -> None:
        """Wait until other requests can read what this answer has stored."""
        return

    @property
    def _by_prompt(self) -> list[Sequence[ReplyChoice]]:
        n = len(self._choices) // len(self._prompts)
        return [self._choices[i : i + n] for i in range(0, len(self._choices), n)]

    def _remember_replies(self) -> None:
        """Remember the tokens of all replies for later prompts that contain them. All must have ended."""
        for prompt, choices in zip(self._prompts, self._by_prompt, strict=True):
            prompt.remember(self._services.history, choices)

    @abstractmethod
    def _whole_json(self) -> bytes:
        """Return the answer as JSON, once all replies have ended."""

    @abstractmethod
    def _opening_events(self) -> Iterator[bytes]:
        """Yield the first events of a stream."""

    @abstractmethod
    def _new_events(self, choice: ReplyChoice) -> Iterator[bytes]:
        """Yield events for what a choice has generated since the last call, and for its end."""

    @abstractmethod
    def _closing_events(self) -> Iterator[bytes]:
        """Yield the last events of a stream, once all replies have ended."""

    def _failure_event(self, error: DuoError) -> bytes:
        """Return the last event of a stream that fails; empty if stop() was called."""
        return b"" if self.stopped else sse(problem.body(error))
