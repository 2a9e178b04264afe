"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api import problem
from server.api.chunks import DONE, ChunkWriter, event, measured, usage
from server.api.schema import ChatRequest, refused
from server.api.served import Served
from server.engine.events import Committed, Event, Failed, Finished
from server.engine.generate import Generation
from server.engine.request import GenerationRequest
from server.errors import BusyError, DuoError, InvalidRequestError, NotFoundError
from server.sampling.params import SamplingParams
from server.text.reply import ReplyText

T = TypeVar("T")

KEEP_ALIVE_S = 15
DRAIN_S = 3600  # a running stream outlives the request to stop: uvicorn's grace time bounds it
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
CLOSED = Response(status_code=499)  # nobody is there to read it


class ClientGone(Exception):  # noqa: N818 - not an error
    """The client has closed the connection."""


async def create(request: Request) -> Response:
    """Answer with a completion, or open a stream of chunks once the request is admitted."""
    served: Served = request.state.served
    body = await _parse(request)
    _check_model(served, body.model)
    reply = _Reply(served, body)
    # on another thread: a long prompt takes a while, and streams shall not stutter meanwhile
    reply.generation = served.generator.submit(await asyncio.to_thread(_to_engine, served, body))
    try:
        if not body.stream:
            return await _unless_gone(request, reply.whole())
        await _unless_gone(request, reply.begin())
    except ClientGone:
        reply.generation.cancel()
        return CLOSED
    except BaseException:
        reply.generation.cancel()
        raise
    return _Stream(reply)


class _Reply:
    """One reply on its way to one client, whole or in chunks."""

    generation: Generation

    def __init__(self, served: Served, body: ChatRequest) -> None:
        self._served = served
        self._with_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._text = ReplyText(served.vocabulary, body.stops)
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    async def begin(self) -> None:
        """Wait until the engine takes the request up. Raises the error if it fails before that."""
        self._events = aiter(self.generation)
        first = await anext(self._events)
        if isinstance(first, Failed):
            raise first.error
        if isinstance(first, Finished):
            raise _shut_down()

    async def whole(self) -> Response:
        await self.begin()
        pieces: list[str] = []
        async for one in self._events:
            if isinstance(one, Committed):
                pieces.append(self._take(one))
            elif isinstance(one, Failed):
                raise one.error
            elif isinstance(one, Finished):
                self._check_end(one)
                pieces.append(self._text.end())
                return Response(
                    orjson.dumps(self._completion("".join(pieces), one)), media_type="application/json"
                )
        raise AssertionError("a generation ends with Finished or Failed")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The stream. A failure in its middle is its last event, without [DONE]."""
        model = self._served.model.id
        writer = ChunkWriter(self._id, self._created, model, self._served.fingerprint, usage=self._with_usage)
        try:
            yield writer.role()
            text = ""
            async for one in self._events:
                if isinstance(one, Committed):
                    text += self._take(one)
                if text and not (isinstance(one, Committed) and self.generation.more):
                    yield writer.text(text)
                    text = ""
                if not isinstance(one, Committed):
                    for chunk in self._ending(writer, one):
                        yield chunk
        except DuoError as error:
            yield event(problem.body(error))
        except Exception as error:
            yield event(problem.body(problem.defect(f"the stream {self._id}", error)))

    def _ending(self, writer: ChunkWriter, one: Event) -> Iterator[bytes]:
        """The chunks that end the stream."""
        if isinstance(one, Failed):
            raise one.error
        elif isinstance(one, Finished):
            self._check_end(one)
            if text := self._text.end():
                yield writer.text(text)
            stats = self._text.stats(one.stats)
            yield writer.finish(self._text.finish_reason(one.reason), measured(stats))
            if self._with_usage:
                yield writer.usage(stats)
            yield DONE

    def _check_end(self, finished: Finished) -> None:
        """Raises unless the reply is complete. A client that goes away reads nothing, so a generation
        that was cancelled without a stop string was cancelled by a server that shuts down."""
        if finished.reason == "cancelled" and not self._text.stopped:
            raise _shut_down()

    def _take(self, committed: Committed) -> str:
        """The text of one step; a stop string in it ends the generation right there."""
        if self._text.stopped:
            return ""
        text = self._text.feed(committed)
        if self._text.stopped:
            self.generation.cancel(keep=self._text.n_tokens)
        return text

    def _completion(self, text: str, finished: Finished) -> dict[str, Any]:
        stats = self._text.stats(finished.stats)
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._served.model.id,
            "system_fingerprint": self._served.fingerprint,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": None},
                    "logprobs": None,
                    "finish_reason": self._text.finish_reason(finished.reason),
                }
            ],
            "usage": usage(stats),
            **measured(stats),
        }


class _Stream(EventSourceResponse):
    """The chunks of one reply. However it ends, even before its first chunk, so does the generation."""

    def __init__(self, reply: _Reply) -> None:
        super().__init__(
            reply.chunks(),
            headers=STREAM_HEADERS,
            ping=KEEP_ALIVE_S,
            sep="\n",
            media_type="text/event-stream",
            shutdown_grace_period=DRAIN_S,
        )
        self._generation = reply.generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.cancel()


def _shut_down() -> BusyError:
    return BusyError("the server is shutting down", draining=True)


async def _parse(request: Request) -> ChatRequest:
    try:
        data = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRequestError("the body must be a JSON object")
    try:
        body = ChatRequest.model_validate(data)
    except ValidationError as error:
        raise problem.invalid(error, data) from error  # pyright: ignore[reportUnknownArgumentType]
    if (name := refused(data)) is not None:  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidRequestError(
            f"{name}: not supported by this server yet", param=name, code="unsupported_parameter"
        )
    return body


def _check_model(served: Served, model: str | None) -> None:
    if model and model not in (served.model.id, "default"):
        raise NotFoundError(
            f"The model `{model}` does not exist: this server has `{served.model.id}`",
            param="model",
            code="model_not_found",
        )


def _to_engine(served: Served, body: ChatRequest) -> GenerationRequest:
    vocabulary = served.vocabulary
    text = served.template.render([message.for_template() for message in body.messages])
    prompt = vocabulary.tokenize(text, special=True)
    if vocabulary.add_bos and vocabulary.bos is not None and prompt[:1] != [vocabulary.bos]:
        prompt.insert(0, vocabulary.bos)
    return GenerationRequest(
        prompt,
        _sampling(served.defaults, body),
        body.max_completion_tokens or body.max_tokens,
        vocabulary.eog,
        body.speculation,
    )


def _sampling(defaults: SamplingParams, body: ChatRequest) -> SamplingParams:
    given = {
        name: value
        for name in ("temperature", "top_k", "top_p", "min_p")
        if (value := getattr(body, name)) is not None
    }
    if given.get("top_k", 0) < 0:  # llama.cpp and vLLM: off
        given["top_k"] = 0
    random = body.seed is None or body.seed == -1  # as in llama.cpp
    seed = secrets.randbits(64) if random else int(body.seed or 0) % (1 << 64)
    return replace(defaults, seed=seed, **given)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. Raises ClientGone, the work cancelled, if the client goes away before."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await one


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
