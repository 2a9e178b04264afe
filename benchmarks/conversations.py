"""Conversations with servers: what is said, turn by turn, and how soon a reply begins."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.client import ReplyError, parse
from benchmarks.prompts import load

Message = dict[str, str]

MESSAGE_TOKENS = 200  # a conversation's history is cut into messages of this length
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Turn:
    """first_ms: from the request to the first piece of text, by the client's clock, with restore_ms, which
    the client spent before on asking the server for a saved conversation."""

    text: str
    first_ms: float
    n_prompt: int
    n_cached: int
    restore_ms: float = 0.0


class Conversation:
    """What each server was told and has said: the same, unless their replies differ."""

    def __init__(self, opening: Sequence[Message], n_servers: int) -> None:
        self.opening = opening
        self._messages = [list(opening) for _ in range(n_servers)]

    def messages(self, server: int) -> list[Message]:
        return list(self._messages[server])

    def hear(self, server: int, reply: str) -> None:
        self._messages[server].append({"role": "assistant", "content": reply})

    def say(self, text: str) -> None:
        for messages in self._messages:
            messages.append({"role": "user", "content": text})


# -- what is said ----------------------------------------


class Author:
    """Openings of conversations, each another from its first word on, of the evaluation prompts' text."""

    def __init__(self, tokenize: Callable[[str], list[str]]) -> None:
        """tokenize: the pieces of a text that the model's vocabulary has tokens for."""
        self._tokenize = tokenize
        self._n_written = 0

    def opening(self, n_tokens: int) -> list[Message]:
        """Messages of that many tokens in all, what the template adds not counted, user first and last."""
        pieces = self._pieces(n_tokens)
        texts = ["".join(pieces[i : i + MESSAGE_TOKENS]) for i in range(0, len(pieces), MESSAGE_TOKENS)]
        if len(texts) % 2 == 0:
            texts[-2:] = ["".join(texts[-2:])]
        return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]

    def system(self, n_tokens: int) -> Message:
        return {"role": "system", "content": "".join(self._pieces(n_tokens))}

    def _pieces(self, n_tokens: int) -> list[str]:
        """Raises ReplyError."""
        self._n_written += 1
        said = [message["content"] for prompt in load() for message in prompt.messages]
        draw = random.Random(self._n_written)
        parts = [str(self._n_written)]
        while True:
            parts += draw.sample(said, len(said))
            pieces = self._tokenize(" ".join(parts).encode("ascii", "ignore").decode())
            if len(pieces) >= n_tokens:
                return pieces[:n_tokens]


def pieces_of(port: int, text: str) -> list[str]:
    """By llama-server's POST /tokenize, of text in ASCII. Raises ReplyError."""
    answer = object_of(call(port, "/tokenize", {"content": text, "with_pieces": True}))
    return [str(token["piece"]) for token in answer["tokens"]]


# -- what is asked ----------------------------------------


def call(port: int, path: str, body: Mapping[str, Any] | None = None) -> list[tuple[float, bytes]]:
    """POST, or GET without a body; the answer's lines with the times they came at. Raises ReplyError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    content = None if body is None else json.dumps(body).encode()
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("GET" if content is None else "POST", path, content, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ReplyError(f"{path}: HTTP {response.status}: {response.read(500).decode(errors='replace')}")
        return [(time.perf_counter(), line) for line in response]
    except (OSError, http.client.HTTPException) as error:
        raise ReplyError(f"the server on port {port} does not answer: {error}") from error
    finally:
        connection.close()


def ask(port: int, messages: Sequence[Message], max_tokens: int) -> Turn:
    """Streamed, at temperature 0. Raises ReplyError."""
    body = {"model": "default", "messages": messages, "temperature": 0, "max_tokens": max_tokens}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    began = time.perf_counter()
    lines = call(port, "/v1/chat/completions", body)
    reply = parse(lines, began)
    n_prompt, n_cached = counts(line for _, line in lines)
    return Turn(reply.text, reply.first_ms, n_prompt, n_cached)


def counts(lines: Iterable[bytes]) -> tuple[int, int]:
    """Tokens of the prompt, and those of them that were in the cache: by usage, else by timings."""
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    for line in lines:
        if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
            chunk = json.loads(line[5:])
            usage = chunk.get("usage") or usage
            timings = chunk.get("timings") or timings
    details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
    n_cached = timings.get("cache_n", 0) if details.get("cached_tokens") is None else details["cached_tokens"]
    return int(usage.get("prompt_tokens", 0)), int(n_cached)


def object_of(lines: Sequence[tuple[float, bytes]]) -> Any:
    return json.loads(b"".join(line for _, line in lines))
