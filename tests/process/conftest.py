"""A server that several tests share; what servers in processes answer is held against the contract, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest

from tests.contract.witness import Exchange, faults
from tests.process.duo import Duo


@pytest.fixture(scope="session")
def duo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duo]:
    """Yield a lead alone, whose drafts come from lookups and from what schemas force."""
    with Duo(tmp_path_factory.mktemp("duo"), "serve", "--no-gate", "--threads", "1") as one:
        one.wait_until_ready()
        yield one


@pytest.fixture
def client(duo: Duo) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{duo.url}/v1", api_key="none", max_retries=0, timeout=60) as one:
        yield one


class _Watched(httpx.SyncByteStream, httpx2.SyncByteStream):
    """A body on its way to a client, shown to an exchange as it comes."""

    def __init__(self, stream: Any, exchange: Exchange) -> None:
        self._stream = stream
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        for data in self._stream:
            self._exchange.sent({"type": "http.response.body", "body": data, "more_body": True})
            yield data
        self._exchange.sent({"type": "http.response.body", "body": b"", "more_body": False})

    def close(self) -> None:
        self._stream.close()


@pytest.fixture(autouse=True)
def _clients_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    for library in (httpx, httpx2):  # ours, and that of OpenAI's SDK
        monkeypatch.setattr(library.Client, "send", _watching(library.Client.send))


def _watching(send: Any) -> Any:
    def watched(client: Any, request: Any, *, stream: bool = False, **more: Any) -> Any:
        response = send(client, request, stream=True, **more)
        exchange = Exchange(request.method, request.url.path, dict(request.headers.raw), faults)
        headers = response.headers.raw
        exchange.sent({"type": "http.response.start", "status": response.status_code, "headers": headers})
        response.stream = _Watched(response.stream, exchange)
        if not stream:
            response.read()
        return response

    return watched
