"""Draft with the model in a browser, connected by the lead through two pipes. A message is a line of JSON.

Messages to the browser:
    {"drafter": "tablet-71-0a1b2c3d"}  the drafter's id, in the first message
    {"id": 3, "keep": 120, "add": [5, 9], "draft": 64}  keep the first 120 tokens of the text, add two, and
        guess the next 64; without `draft`, the next message adds more text
    {"stop": 3}  stop guessing for this request

Messages from the browser:
    {"n_ctx": 4096}  the length of its context, in the first message
    {"id": 3, "said": [[17, 0.8]]}  guesses, each with its probability
    {"id": 3, "end": false}  after the last guess; true: the model ends the text here
    {"id": 3, "failed": "why"}

The browser is not trusted: the first invalid line ends the drafter.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, cast

import orjson

from drafters.engine_client import Reply
from drafters.engine_dialects import Said
from server.cache.radix import common_prefix
from server.errors import StartupError

logger = logging.getLogger("duo.drafter")

MAX_LINE_BYTES = 1 << 12  # bytes of a message from the browser: 20 times the longest. Bounds memory
MAX_ADDED = 1024  # tokens in a message to the browser: 7 KB. Half: twice as many messages
MAX_BROWSER_CONTEXT = 1 << 20  # maximum context, in tokens, that a browser may claim: bounds messages
MAX_FAILURE_TEXT = 200  # characters of a failure that are logged


class BrowserError(ValueError):
    """The browser sent a line that duo's page never sends."""


class BrowserLink:
    """A DraftEngine that asks the model in a browser, which holds one text at a time."""

    name, takes_ids, n_at_once, cancel_s = "the browser", True, 1, 0.0

    def __init__(self, lines: BinaryIO, out: int, *, salt: str = "") -> None:
        """Wait for the browser's first message.

        Args:
            lines: Messages of the browser.
            out: The file descriptor for messages to the browser.
            salt: Salt of the sessions that the browser may read, as leads send it.

        Raises:
            StartupError: The browser has left, or its first message is invalid.
        """
        self._lines, self._out, self._salt = lines, out, salt
        self._lock = threading.Lock()  # held while the request is replaced, or a guess is added
        self._id = 0  # id of the latest request
        self._text: list[int] = []  # tokens that the browser is known to have
        self._reply = Reply()  # reply to the latest request
        self._n_wanted = 0  # guesses that the reply may still get
        try:
            hello = self._next_message() or {}
            self._n_ctx = int(hello["n_ctx"])
        except (BrowserError, KeyError, TypeError, ValueError) as error:
            raise StartupError("the browser did not say the length of its context") from error
        if not 1 < self._n_ctx <= MAX_BROWSER_CONTEXT:
            raise StartupError(f"no browser has a context of {self._n_ctx} tokens")

    def introduce(self, id: str) -> None:
        """Send the browser the drafter's id, by which the page finds this drafter in /health."""
        self._send({"drafter": id})

    def listen(self, gone: Callable[[], None]) -> None:
        """Take the browser's messages until it leaves or sends an invalid one, then call `gone`."""
        try:
            while self.hear():
                pass
            logger.info("the browser has left")
        except BrowserError as error:
            logger.warning("the browser is disconnected: %s", error)
        finally:
            gone()

    def hear(self) -> bool:
        """Take the browser's next message; return False if it has left. Raises BrowserError."""
        message = self._next_message()
        if message is not None:
            self._take(message)
        return message is not None

    # -- as an engine

    def refusal(self, n_tokens: int, salt: str) -> str | None:
        if salt != self._salt:
            return "it belongs to another key, or has a cache_salt: the browser's user may not read it"
        if n_tokens >= self._n_ctx:
            return f"its text is longer than the browser's context of {self._n_ctx} tokens"
        return None

    def ask(
        self, prompt: str | Sequence[int], n_tokens: int, *, salt: str, ready: Callable[[], None]
    ) -> Reply:
        tokens = list(cast(Sequence[int], prompt))
        reply = Reply()
        with self._lock:
            self._id += 1
            id, keep = self._id, common_prefix(self._text, tokens)
            reply._cancel = lambda: self._stop(id)  # pyright: ignore[reportPrivateUsage]
            self._text, self._reply, self._ready = tokens, reply, ready
            self._n_wanted = min(n_tokens, self._n_ctx - len(tokens))
        rest = tokens[keep:]
        while len(rest) > MAX_ADDED:
            self._send({"id": id, "keep": keep, "add": rest[:MAX_ADDED]})
            keep, rest = keep + MAX_ADDED, rest[MAX_ADDED:]
        self._send({"id": id, "keep": keep, "add": rest, "draft": self._n_wanted})
        return reply

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        timer.start()

    def _stop(self, id: int) -> None:
        if id == self._id and not self._reply.is_done:
            self._send({"stop": id})

    # -- messages

    def _send(self, message: dict[str, Any]) -> None:
        """Write a message. Waits while the browser does not read; does nothing if the browser has left."""
        data = orjson.dumps(message) + b"\n"
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError:  # it has left: listen() notices
            pass

    def _next_message(self) -> dict[str, Any] | None:
        """Return the next message, None if the browser has left. Raises BrowserError."""
        line = self._lines.readline(MAX_LINE_BYTES)
        if not line:
            return None
        try:
            message: Any = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise BrowserError(f"no JSON: {line[:60]!r}") from error
        if not isinstance(message, dict):
            raise BrowserError(f"no JSON object: {line[:60]!r}")
        return cast(dict[str, Any], message)

    def _take(self, message: dict[str, Any]) -> None:
        """Add a message from the browser to the current reply; ignore messages about earlier requests."""
        with self._lock:
            if message.get("id") != self._id:
                return
            reply = self._reply
            if "failed" in message:
                reply.error = str(message["failed"])[:MAX_FAILURE_TEXT]
            elif "end" in message:
                reply.said.append(Said(is_end=True, ends_text=message["end"] is True))
            else:
                self._add_guesses(reply, message.get("said"))
            reply.is_done = reply.is_done or "failed" in message or "end" in message
            ready = self._ready
        ready()

    def _add_guesses(self, reply: Reply, said: object) -> None:
        guesses = [_guess_of(one) for one in cast(list[object], said)] if isinstance(said, list) else []
        self._n_wanted -= len(guesses)
        if not guesses or self._n_wanted < 0 or reply.is_done:
            raise BrowserError("guesses that nobody asked for")
        reply.last_s = time.monotonic()
        reply.first_s = reply.first_s or reply.last_s
        reply.said += guesses
        self._text += [one.token for one in guesses if one.token is not None]


def _guess_of(pair: object) -> Said:
    """Convert a message's guess, [token, probability], to a piece of a reply. Raises BrowserError."""
    match pair:
        case [int(token), (int() | float()) as probability] if token >= 0 and 0.0 < probability <= 1.0:
            return Said("", token, float(probability))
        case _:
            raise BrowserError(f"no guess: {repr(pair)[:60]}")
