"""Request streamed chat completions and time them by the client's clock, equally for every server.

While a reply streams, its lines are only collected and stamped. On a small machine, a client that parses
while it reads takes time from the server that it measures.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.prompts import Prompt
from server.errors import DuoError

TIMEOUT_S = 600.0  # a cold prompt of 3,500 tokens takes 30 s on two cores

Stamped: TypeAlias = Sequence[tuple[float, bytes]]
"""Lines, each with the time at which it arrived."""


class ReplyError(DuoError):
    """The server did not answer as it should."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply as its client saw it; rates are tokens per second without the first token and its time."""

    text: str
    n_tokens: int
    first_ms: float  # from the request to the first piece of text
    client_rate: float | None = None  # from the first piece to the chunk with the reason of the end
    server_rate: float | None = None  # from the server's own timings; None without them
    n_drafted: int = 0
    n_accepted: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    asked: float = 0.0  # seconds on the client's clock, like the next two
    pieces: tuple[float, ...] = ()  # when each piece came
    ended: float = 0.0


def ask(port: int, prompt: Prompt, max_tokens: int, *, more: Mapping[str, Any] | None = None) -> Reply:
    """Return the reply, at temperature 0 unless the prompt or `more` says otherwise.

    Args:
        port: The server's port.
        prompt: The messages, salt and fields.
        max_tokens: Most tokens of the reply.
        more: Other fields of the request.

    Raises:
        ReplyError: The server did not answer as it should.
    """
    body: dict[str, Any] = {"model": "default", "messages": prompt.messages, "temperature": 0}
    body |= {"max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"cache_salt": prompt.salt} if prompt.salt else {}
    asked = time.perf_counter()
    return parse(call(port, "/v1/chat/completions", {**body, **prompt.more, **(more or {})}), asked)


def call(
    port: int, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S
) -> Stamped:
    """Send a POST, or a GET if there is no body; return the lines of the answer.

    Raises ReplyError unless the status is 200.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    content = None if body is None else json.dumps(body).encode()
    try:
        kind = {"Content-Type": "application/json"}
        connection.request("GET" if content is None else "POST", path, content, kind)
        response = connection.getresponse()
        if response.status != 200:
            raise ReplyError(f"{path}: HTTP {response.status}: {response.read(500).decode(errors='replace')}")
        return [(time.perf_counter(), line) for line in response]
    except (OSError, http.client.HTTPException) as error:
        raise ReplyError(f"the server on port {port} does not answer: {error}") from error
    finally:
        connection.close()


def call_json(
    port: int, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S
) -> Any:
    """Return the JSON of the answer that call() gets. Raises ReplyError."""
    return json.loads(b"".join(line for _, line in call(port, path, body, timeout_s)))


def parse(lines: Stamped, asked: float) -> Reply:
    """Parse the reply in server-sent events. Raises ReplyError if the reply is cut short."""
    pieces: list[tuple[float, str]] = []
    ended = asked
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    done = False
    for at, line in lines:
        data = line[5:].strip()
        if not line.startswith(b"data:"):
            continue
        if done := data == b"[DONE]":
            break
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            raise ReplyError(f"the reply ended in an error: {chunk['error']}")
        usage = chunk.get("usage") or usage
        timings = chunk.get("timings") or usage.get("timings") or timings
        for choice in chunk.get("choices", ()):
            pieces += [(at, content)] if (content := choice["delta"].get("content")) else []
            ended = at if choice.get("finish_reason") else ended
    if not done or not usage or ended == asked:
        raise ReplyError("the reply was cut short")
    n_tokens = int(usage["completion_tokens"])
    first = pieces[0][0] if pieces else ended
    details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
    n_cached: Any = details.get("cached_tokens")
    return Reply(
        text="".join(content for _, content in pieces),
        n_tokens=n_tokens,
        first_ms=1000 * (first - asked),
        client_rate=_rate(n_tokens, ended - first),
        server_rate=_rate(int(timings.get("predicted_n") or 0), (timings.get("predicted_ms") or 0) / 1000),
        n_drafted=int(timings.get("draft_n") or 0),
        n_accepted=int(timings.get("draft_n_accepted") or 0),
        n_prompt=int(usage.get("prompt_tokens", 0)),
        n_cached=int(timings.get("cache_n", 0) if n_cached is None else n_cached),
        asked=asked,
        pieces=tuple(at for at, _ in pieces),
        ended=ended,
    )


def _rate(n_tokens: int, seconds: float) -> float | None:
    """Return tokens per second after the first token.

    llama-server's predicted_per_second counts the first token but not its time.
    """
    return (n_tokens - 1) / seconds if n_tokens > 1 and seconds > 0 else None
