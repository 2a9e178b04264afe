"""Ask an engine over HTTP, from an event loop on its own thread, without waiting for answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import httpx

from drafters.engine_dialects import Dialect, EngineError, Said

CONNECT_S = 5.0  # seconds to connect. Half: fails for slow engines; twice: a missing one costs 10 s
ENGINE_SILENT_S = 120.0  # seconds without data until a request fails: prefill takes less. Twice: after 4 min
# Seconds until an engine notices a closed connection: llama-server took 15 to 35 ms. Half: connections are
# closed and opened more often; twice: the engine continues wrong texts for 20 ms more
ENGINE_CANCEL_S = 0.02
MAX_LINE = 1 << 16  # bytes of one line of an answer: some 100 times the longest. Bounds memory


class Reply:
    """The answer to one request so far. The client appends, the drafter reads."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.is_done = False  # True once the reply is complete or has failed
        self.error: str | None = None
        self.asked_s = time.monotonic()
        self.first_s = self.last_s = 0.0  # times when the first and the last piece came
        self._cancel: Callable[[], object] = lambda: None

    @property
    def token_s(self) -> float:
        """Return the mean seconds per piece of the reply; 0.0 before there are two pieces."""
        return (self.last_s - self.first_s) / (len(self.said) - 1) if len(self.said) > 1 else 0.0

    def cancel(self) -> None:
        """Close the connection, so the engine stops. Safe from any thread, even after the end."""
        self._cancel()


class DraftEngine(Protocol):
    """An engine that continues texts for an EngineDrafter: a server over HTTP, or the model in a browser."""

    name: str  # for logs
    takes_ids: bool  # prompts and replies are token ids
    n_at_once: int  # maximum requests that it answers at the same time
    cancel_s: float  # seconds that it goes on with a cancelled request

    def refusal(self, n_tokens: int, salt: str) -> str | None:
        """Return why this engine cannot serve a session of n_tokens with this salt, None if it can."""
        ...

    def ask(
        self, prompt: str | Sequence[int], n_tokens: int, *, salt: str, ready: Callable[[], None]
    ) -> Reply:
        """Begin a request, and return its reply.

        Args:
            prompt: The text to continue.
            n_tokens: Maximum tokens of the reply.
            salt: Sent as cache_salt, so that engines that know it share no cache between salts.
            ready: Called from another thread whenever the reply has grown or is done.
        """
        ...

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after `seconds`, on another thread."""
        ...


class EngineClient:
    """A client of one engine, for use by one thread. close() ends running requests."""

    def __init__(self, url: str, *, key: str | None = None, model: str = "") -> None:
        """Begin without a connection; `key` is a bearer token, `model` the model's name in requests."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(ENGINE_SILENT_S, connect=CONNECT_S)
        # engines are in the local network, which a proxy from the environment would not reach
        self._http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="duo-engine-client", daemon=True)
        self._thread.start()

    def fetch(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request, and return the JSON of the answer; None for an error status or other content.

        Raises:
            EngineError: There is no engine at the URL, or it refuses this client.
        """
        return asyncio.run_coroutine_threadsafe(self._fetch_json(method, path, body), self._loop).result()

    def ask(
        self,
        dialect: Dialect,
        prompt: str | Sequence[int],
        n_tokens: int,
        *,
        salt: str,
        ready: Callable[[], None],
    ) -> Reply:
        """Begin a request in this dialect, and return its reply, as DraftEngine.ask does."""
        reply = Reply()
        body = dialect.body(prompt, n_tokens, self.model) | ({"cache_salt": salt} if salt else {})
        future = asyncio.run_coroutine_threadsafe(self._stream_reply(dialect, body, reply, ready), self._loop)
        reply._cancel = future.cancel  # pyright: ignore[reportPrivateUsage]
        return reply

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after `seconds`, on another thread."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, call)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end_requests(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- the event loop

    async def _fetch_json(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise EngineError(f"no answer from {self.url}: {error}") from error
        if answer.status_code in (401, 403):
            raise EngineError(f"{self.url} refuses this drafter: give its key with --engine-key")
        try:
            return answer.json() if answer.is_success else None
        except ValueError:
            return None

    async def _stream_reply(
        self, dialect: Dialect, body: dict[str, Any], reply: Reply, ready: Callable[[], None]
    ) -> None:
        try:
            async with self._http.stream("POST", dialect.path, json=body) as answer:
                if not answer.is_success:
                    text = (await answer.aread())[:200].decode(errors="replace")
                    raise EngineError(f"{answer.status_code}: {text}")
                async for line in _answer_lines(answer):
                    if said := dialect.read(line):
                        reply.last_s = self._loop.time()
                        reply.first_s = reply.first_s or reply.last_s
                        reply.said += said
                        if said[-1].is_end:
                            break
                        ready()
                else:
                    raise EngineError("its answer is incomplete")
            if len(reply.said) == 1 and not reply.said[0].ends_text:
                raise EngineError("its answer is empty")
        except (
            httpx.HTTPError,
            ValueError,
            TypeError,
            AttributeError,
        ) as error:  # what it says may be anything
            reply.error = str(error) or type(error).__name__
        finally:
            reply.is_done = True
            ready()

    async def _end_requests(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()


class HttpEngine:
    """A DraftEngine over HTTP: a client, and the dialect of its requests."""

    def __init__(self, client: EngineClient, dialect: Dialect, n_at_once: int = 1) -> None:
        self.n_at_once, self.cancel_s = n_at_once, ENGINE_CANCEL_S
        self.name = f"the engine at {client.url}"
        self.takes_ids = dialect.takes_ids
        self.after = client.after
        self._client, self._dialect = client, dialect

    def refusal(self, n_tokens: int, salt: str) -> str | None:
        return None  # the engine itself refuses prompts that are too long

    def ask(
        self, prompt: str | Sequence[int], n_tokens: int, *, salt: str, ready: Callable[[], None]
    ) -> Reply:
        return self._client.ask(self._dialect, prompt, n_tokens, salt=salt, ready=ready)


async def _answer_lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of an answer. Raises EngineError for a line longer than MAX_LINE."""
    rest = b""
    async for data in answer.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > MAX_LINE:
            raise EngineError(f"a line of more than {MAX_LINE} bytes")
    if rest:
        yield rest
