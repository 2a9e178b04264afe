"""Every reply and chunk of the test suite is held against openapi.yaml, whichever client a test uses.

Apps of tests are wrapped by `witnessed`; what does not fit is noted, and the test that has caused it fails:
see the fixture in tests/conftest.py. Validated before it is sent, so that a test cannot end earlier.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tests.contract.operations import (
    ANSWERED_WITH_ERRORS,
    ContractError,
    Operation,
    check_event,
    check_headers,
    check_value,
    operation_of,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

CLIENT_GONE = 499
"""Nobody reads it."""
ERROR = {"$ref": "#/components/schemas/Error"}
MESSAGES_ERROR = {"$ref": "#/components/schemas/MessagesError"}
faults: list[str] = []
"""What did not fit, since somebody last took it away."""


def witnessed(app: App, into: list[str] = faults) -> App:
    """Return the same app; answers that are not in the contract are noted."""

    async def watching(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        exchange = Exchange(scope["method"], scope["path"], dict(scope["headers"]), into)

        async def watched(message: Message) -> None:
            exchange.sent(message)
            await send(message)

        await app(scope, receive, watched)

    return watching


class Exchange:
    """One request and its answer, as it is sent."""

    def __init__(self, method: str, path: str, asked: dict[bytes, bytes], into: list[str]) -> None:
        self._what = f"{method} {path}"[:200]
        self._exempt = (method == "OPTIONS" and b"access-control-request-method" in asked) or (
            path.startswith(("/web/", "/lend/page/"))  # files of the pages
        )
        self._error = MESSAGES_ERROR if re.match("(/v1)?/messages(/|$)", path) else ERROR
        self._redirected = path.endswith("/")
        self._bodiless = method == "HEAD"
        self._operation = operation_of(method, path)
        self._into = into
        self._schema: dict[str, Any] | None = None
        self._streams = False
        self._data = b""

    def sent(self, message: Message) -> None:
        """Note the first thing that does not fit, and look no further."""
        try:
            if message["type"] == "http.response.start":
                self._begun(
                    message["status"], {k.decode().lower(): v.decode() for k, v in message["headers"]}
                )
            elif message["type"] == "http.response.body" and self._schema is not None:
                self._went_on(message.get("body", b""), ended=not message.get("more_body", False))
        except ContractError as error:
            self._schema = None
            self._into.append(f"{self._what}: {error}")

    def _begun(self, status: int, headers: dict[str, str]) -> None:
        self._what = f"{self._what} -> {status}"
        for name in ("x-request-id", "openai-processing-ms"):
            if name not in headers:
                raise ContractError(f"no {name}")
        redirected = status == 307 and self._redirected
        if self._exempt or redirected or status == CLIENT_GONE:
            return
        kind = headers.get("content-type", "").partition(";")[0]
        content = self._content(self._operation, status, headers)
        if not content and not kind:
            return
        if kind not in content:
            raise ContractError(f"{kind!r} is not one of {sorted(content)}")
        if not self._bodiless and kind in ("application/json", "text/event-stream"):
            self._schema = content[kind]["schema"]
            self._streams = kind == "text/event-stream"

    def _content(self, operation: Operation | None, status: int, headers: dict[str, str]) -> dict[str, Any]:
        if operation is None:
            if status not in ANSWERED_WITH_ERRORS:
                raise ContractError("the contract has no such operation")
            return {"application/json": {"schema": self._error}}
        answer = operation.answer(status)
        check_headers(answer, headers, self._what)
        return answer.get("content", {})

    def _went_on(self, data: bytes, *, ended: bool) -> None:
        assert self._schema is not None
        self._data += data
        if self._streams:
            *events, self._data = self._data.split(b"\n\n")
            for event in events:
                check_event(self._schema, event, "an event")
            if ended and self._data:
                raise ContractError(f"the stream ends within an event: {self._data[:200]!r}")
        elif ended:
            check_value(self._schema, self._data, "the body")
