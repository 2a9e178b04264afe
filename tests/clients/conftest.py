"""Clients of other people, and no network but this machine."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving

_resolve = socket.getaddrinfo


def _only_here(host: Any, *args: Any, **kwargs: Any) -> Any:
    if host not in ("127.0.0.1", "localhost"):
        raise AssertionError(f"a client looks for {host}")
    return _resolve(host, *args, **kwargs)


@pytest.fixture(autouse=True)
def _nothing_leaves_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Block what clients do by themselves when imported or used: fetch prices, report traces."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", _only_here)


@pytest.fixture
async def clients() -> AsyncIterator[dict[str, Any]]:
    """Yield HTTP clients for LangChain, whose own are kept by URL and never closed."""
    async with openai.DefaultAsyncHttpxClient() as later:
        with openai.DefaultHttpxClient() as now:
            yield {"http_client": now, "http_async_client": later}


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    """Yield the toy, with room for tools in the prompt."""
    with serving(FakeBackend(FakeModel(seed=3), n_ctx=4096, n_cells=32_768)) as one:
        yield one


@pytest.fixture
def client(lead: Lead) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{lead.url}/v1", api_key="none", max_retries=0, timeout=30) as one:
        yield one
        lead.until_idle()
