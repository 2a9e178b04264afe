"""Clients of a live system: those that compare replies with a quiet lead's, and those that misbehave."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from random import Random
from typing import Any, TypeAlias

from benchmarks.client import ReplyError, call
from tests.chaos.system import System

ANSWERED_S = 60.0  # a fault lasts 3 s, a start of the lead 5
AGAIN_S = 0.1

Seen: TypeAlias = tuple[tuple[tuple[str, str], ...], int, int]
"""Texts and finish reasons of a reply's choices, tokens of its prompt and of the reply."""

Turns: TypeAlias = list[dict[str, str]]

SCHEMA = {"type": "object", "properties": {"name": {"enum": ["duo", "solo"]}, "n": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {**SCHEMA, "required": ["name"]}}}


def turns(*said: str) -> Turns:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]


def chat(*said: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": turns(*said), "temperature": 0, "max_tokens": 80, **more}


ASKS = [
    chat("Explain what a list is."),
    chat("Explain what a list is.", "A list is a row of things.", "And what is a dictionary?"),
    chat("Name three rivers.", temperature=1, seed=5, n=2),
    chat("Tell me about the sea. " * 12, temperature=0.8, seed=6, top_p=0.9, repeat_penalty=1.2),
    chat("Write a short poem about snow.", stop=["e, "], temperature=1, seed=8),
    chat("Which is it?", response_format=FORMAT),
    chat("Look for it.", tools=[TOOL], tool_choice="required", temperature=1, seed=3),
    chat("Why is the sky blue?", n_beams=3, max_tokens=30),
    ("/v1/completions", {"prompt": "Once upon a time", "temperature": 1, "seed": 4, "max_tokens": 90}),
    ("/v1/completions", {"prompt": ["One, two, ", "A, b, c, "], "temperature": 0, "max_tokens": 40}),
]  # fmt: skip


def ask(port: int, what: int, **more: Any) -> tuple[Seen, int]:
    """Return the reply to ASKS[what] as its client sees it, and its accepted guesses, which streams omit.

    Raises ReplyError.
    """
    path, body = ASKS[what]
    if more.get("stream"):
        more["stream_options"] = {"include_usage": True}
    lines = [line for _, line in call(port, path, {**body, **more}, ANSWERED_S)]
    if more.get("stream"):
        if lines[-2:] != [b"data: [DONE]\n", b"\n"]:
            raise ReplyError(f"the reply was cut short: {lines[-2:]}")
        parts = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    else:
        parts = [json.loads(b"".join(lines))]
    return _seen(parts)


def _seen(parts: list[dict[str, Any]]) -> tuple[Seen, int]:
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    last: dict[str, Any] = {}
    for part in parts:
        if "error" in part:
            raise ReplyError(f"the reply ended in an error: {part['error']}")
        last |= {name: part[name] for name in ("usage", "metrics") if part.get(name)}
        for choice in part["choices"]:
            at = choice["index"]
            texts[at] = texts.get(at, "") + _text(choice)
            ends[at] = choice["finish_reason"] or ends.get(at, "")
    usage = last["usage"]
    replies = tuple((texts[at], ends[at]) for at in sorted(texts))
    speculation: dict[str, int] = last.get("metrics", {}).get("speculative_decoding", {})
    n_accepted = speculation.get("num_accepted_draft_tokens", 0)
    return (replies, usage["prompt_tokens"], usage["completion_tokens"]), n_accepted


def _text(choice: dict[str, Any]) -> str:
    message: dict[str, Any] = choice.get("message") or choice.get("delta") or {}
    calls: list[dict[str, Any]] = [call["function"] for call in message.get("tool_calls") or ()]
    said = [choice.get("text"), message.get("content")]
    said += [call.get(part) for call in calls for part in ("name", "arguments")]
    return "".join(filter(None, said))


def alone(port: int) -> list[Seen]:
    """Return the replies to ASKS without drafts, one after the other."""
    return [ask(port, what, speculative=False)[0] for what in range(len(ASKS))]


class Client:
    """A client that asks until stop(), and once more.

    problems: what was not as expected. n_asked: replies compared. n_accepted: guesses of drafters accepted in
    them. seconds: the time of each.
    """

    def __init__(self, system: System, expected: list[Seen], chance: Random) -> None:
        self.problems: list[str] = []
        self.n_asked = self.n_accepted = 0
        self.seconds: list[float] = []
        self._system, self._expected, self._chance = system, expected, chance
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="client")
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stopped.is_set()
            what, stream = self._chance.randrange(len(ASKS)), self._chance.random() < 0.5
            began = time.monotonic()
            seen = self._answer(what, stream=stream)
            self.seconds.append(time.monotonic() - began)
            if seen is not None and seen != self._expected[what]:
                self.problems.append(f"request {what}: {seen} instead of {self._expected[what]}")
            self.n_asked += 1

    def _answer(self, what: int, **more: Any) -> Seen | None:
        """Ask, and again if the lead was killed; None after a problem."""
        for _ in range(round(ANSWERED_S / AGAIN_S)):
            try:
                seen, n_accepted = ask(self._system.port, what, **more)
                self.n_accepted += n_accepted
                return seen
            except ReplyError as error:
                if not self._system.lead_ended or "HTTP 4" in str(error):
                    self.problems.append(f"request {what} {more}: {error}")
                    return None
            threading.Event().wait(AGAIN_S)
        self.problems.append(f"request {what}: no answer")
        return None


def vanish(port: int, chance: Random) -> None:
    """Ask, and reset the connection at any moment: in the request, before the first byte, in the stream."""
    with asking(port, cut=chance.choice([None, None, chance.randrange(200)])) as client:
        for _ in range(chance.randrange(12)):
            client.settimeout(chance.uniform(0.001, 0.3))
            try:
                if not client.recv(64):
                    return
            except OSError:
                return


def asking(port: int, *, cut: int | None = None) -> socket.socket:
    """Return a connection that sent the first `cut` bytes of an endless stream's request.

    Closing it resets it.
    """
    endless = {"ignore_eos": True, "context_shift": True, "max_tokens": 1_000_000}
    body = json.dumps({"prompt": "For ever ", "stream": True, **endless})
    head = "POST /v1/completions HTTP/1.1\r\nHost: duo\r\nContent-Type: application/json"
    request = f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(5)
    try:
        client.connect(("127.0.0.1", port))
        client.sendall(request.encode()[:cut])
    except OSError:
        pass  # no lead at the moment
    return client
