"""One streamed chat completion, timed by the client's own clock. The same code for every server.

While the reply streams, lines are only collected and stamped: on a small machine a client that parses as it
reads takes time from the server it measures.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.prompts import Prompt
from server.errors import DuoError


class ReplyError(DuoError):
    """The server did not answer as it should."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Rates are tokens/s of decoding, the first token not counted, since its time is the prompt's.
    `server_rate`: from the server's own timings, None without them. `client_rate`: from the first piece of
    text to the chunk that says why the reply ended. `first_ms`: from the request to the first piece."""

    text: str
    n_tokens: int
    first_ms: float
    client_rate: float | None
    server_rate: float | None
    n_drafted: int = 0
    n_accepted: int = 0


def ask(
    port: int,
    prompt: Prompt,
    max_tokens: int,
    timeout_s: float = 300.0,
    *,
    more: Mapping[str, Any] | None = None,
) -> Reply:
    """The reply at temperature 0 of the server on that port of this machine. more: other fields of the
    request. Raises ReplyError."""
    body: dict[str, Any] = {
        "model": "default",
        "messages": prompt.messages,
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(more or {}),
    }
    began = time.perf_counter()
    lines = _post(port, json.dumps(body).encode(), timeout_s)
    return parse(lines, began)


def _post(port: int, body: bytes, timeout_s: float) -> list[tuple[float, bytes]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ReplyError(f"HTTP {response.status}: {response.read(500).decode(errors='replace')}")
        return [(time.perf_counter(), line) for line in response]
    except (OSError, http.client.HTTPException) as error:
        raise ReplyError(f"the server on port {port} does not answer: {error}") from error
    finally:
        connection.close()


def parse(lines: list[tuple[float, bytes]], began: float) -> Reply:
    """The reply from stamped lines of server-sent events. Raises ReplyError when it is cut short."""
    pieces: list[tuple[float, str]] = []
    ended = began
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    done = False
    for at, line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            done = True
            break
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            raise ReplyError(f"the reply ended in an error: {chunk['error']}")
        usage = chunk.get("usage") or usage
        timings = chunk.get("timings") or usage.get("timings") or timings
        for choice in chunk.get("choices", ()):
            pieces.append((at, choice["delta"].get("content") or ""))
            if choice.get("finish_reason"):
                ended = at
    if not done or not usage or ended == began:
        raise ReplyError("the reply was cut short")
    n_tokens = int(usage["completion_tokens"])
    first = next((at for at, content in pieces if content), ended)
    return Reply(
        text="".join(content for _, content in pieces),
        n_tokens=n_tokens,
        first_ms=1000 * (first - began),
        client_rate=_rate(n_tokens, ended - first),
        server_rate=_rate(int(timings.get("predicted_n") or 0), (timings.get("predicted_ms") or 0) / 1000),
        n_drafted=int(timings.get("draft_n") or 0),
        n_accepted=int(timings.get("draft_n_accepted") or 0),
    )


def _rate(n_tokens: int, seconds: float) -> float | None:
    """llama-server counts the first token in its own predicted_per_second, but not its time: hence anew."""
    return (n_tokens - 1) / seconds if n_tokens > 1 and seconds > 0 else None
