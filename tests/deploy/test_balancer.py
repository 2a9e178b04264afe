"""deploy/haproxy: two leads behind one address, a conversation with one of them."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.process.duo import free_port
from tests.support import until

CONFIG = Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy")

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="no haproxy on this machine")


@contextmanager
def balanced(folder: Path, *addresses: str) -> Generator[str]:
    """Yield the address of HAProxy with this configuration in front of leads at these addresses."""
    port, text = free_port(), CONFIG.read_text()
    before, servers = text[: text.index("    server one")], text[text.index("    server one") :]
    assert len(servers.splitlines()) == 2  # it is for two leads, and the file's end
    text = before + "".join(f"    server lead-{i} {one}\n" for i, one in enumerate(addresses))
    written = folder / "haproxy.cfg"
    written.write_text(text.replace("127.0.0.1:8080", f"127.0.0.1:{port}"))
    with subprocess.Popen([str(HAPROXY), "-db", "-f", str(written)], stderr=subprocess.PIPE) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: _answers(url), "haproxy does not answer")
            yield url
        finally:
            process.kill()


def address_of(lead: Lead) -> str:
    return lead.url.removeprefix("http://")


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


def turn(url: str, messages: list[dict[str, str]], question: str, **said: Any) -> int:
    """Ask, append the reply, and return how many tokens came from the cache."""
    messages.append({"role": "user", "content": question})
    body = {"messages": messages, "max_tokens": 8, **said.get("fields", {})}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, headers=said.get("headers"), timeout=30)
    assert response.status_code == 200, response.text
    found = response.json()
    messages.append({"role": "assistant", "content": found["choices"][0]["message"]["content"]})
    return found["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture
def leads() -> Generator[tuple[Lead, Lead]]:
    with serving(FakeBackend(FakeModel(seed=3))) as one, serving(FakeBackend(FakeModel(seed=3))) as two:
        yield one, two


@pytest.mark.parametrize(
    "said",
    [
        {"headers": {"X-Conversation": "c7"}},
        {"fields": {"prompt_cache_key": "c7"}},
        {"fields": {"user": "c7"}},
        {},
    ],
    ids=["header", "prompt_cache_key", "user", "nothing but the address"],
)
def test_ten_turns_stay_with_one_lead(tmp_path: Path, leads: tuple[Lead, Lead], said: dict[str, Any]):
    with balanced(tmp_path, *map(address_of, leads)) as url:
        messages: list[dict[str, str]] = []
        cached = [turn(url, messages, f"question {i}", **said) for i in range(10)]
        assert cached[0] == 0
        assert all(after > before for before, after in itertools.pairwise(cached))


def test_conversations_are_spread(tmp_path: Path, leads: tuple[Lead, Lead]):
    with balanced(tmp_path, *map(address_of, leads)) as url:
        for i in range(16):
            turn(url, [], "hello", headers={"X-Conversation": f"c{i}"})
    used = [httpx.get(f"{lead.url}/metrics").text for lead in leads]
    assert all("duo:tokens_predicted_total 0.0" not in text for text in used)


def test_next_turn_survives_dead_lead(tmp_path: Path):
    with ExitStack() as stack:
        first = stack.enter_context(serving(FakeBackend(FakeModel(seed=3))))
        dying = ExitStack()
        second = dying.enter_context(serving(FakeBackend(FakeModel(seed=3))))
        with balanced(tmp_path, address_of(first), address_of(second)) as url:
            talks = {f"c{i}": list[dict[str, str]]() for i in range(8)}
            for name, messages in talks.items():
                turn(url, messages, "hello", headers={"X-Conversation": name})
            dying.close()
            until(lambda: all(_services(url, name) for name in talks), "the other lead does not take over")
            for name, messages in talks.items():
                turn(url, messages, "and now?", headers={"X-Conversation": name})


def _services(url: str, conversation: str) -> bool:
    """Return True if a request of this conversation gets an answer."""
    return httpx.get(f"{url}/v1/models", headers={"X-Conversation": conversation}).status_code == 200
