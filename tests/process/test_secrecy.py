"""What is said stays between client, model and drafters: no log, name of a key or process title has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.process.duo import Duo

pytestmark = [
    pytest.mark.model,
    pytest.mark.redis,
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
]

MARK = "Zyzzogeton"
SAID = f"Tell {MARK} about lists in Python."
EVERY_LEVEL = """
import logging, sys
own, all = logging.Logger.callHandlers, logging.StreamHandler(sys.stderr)
all.setFormatter(logging.Formatter("every level: %(levelname)s %(name)s %(message)s"))
logging.Logger.isEnabledFor = lambda self, level: True
logging.Logger.callHandlers = lambda self, record: (own(self, record), all.handle(record))
"""

USER = {"role": "user", "content": SAID}
FUNCTION: dict[str, Any] = {
    "name": MARK,
    "description": MARK,
    "parameters": {"type": "object", "properties": {MARK: {}}},
}
CALL = {"id": MARK, "type": "function", "function": {"name": MARK, "arguments": f'{{"{MARK}": 1}}'}}
TURNS = [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": MARK, "content": SAID}]
RPC = {"prompt": SAID, "n_predict": 8}
CHAT = "/v1/chat/completions"
REQUESTS: list[tuple[str, int, dict[str, Any]]] = [
    (CHAT, 200, {"messages": [{"role": "system", "content": SAID}, USER], "user": MARK, "stop": MARK}),
    (CHAT, 200, {"messages": [USER, *TURNS], "tools": [{"type": "function", "function": FUNCTION}]}),
    (CHAT, 200, {"messages": [USER], "prediction": {"type": "content", "content": SAID}}),
    (CHAT, 200, {"messages": [USER], "cache_salt": MARK, "logprobs": True}),
    (CHAT, 400, {"messages": [{"role": MARK, "content": SAID}]}),
    (CHAT, 400, {"messages": [{"role": "user", "content": SAID * 9000}]}),
    (CHAT, 400, {"messages": [USER], "grammar": f'root ::= "{MARK}'}),
    (CHAT, 404, {"messages": [USER], "model": MARK}),
    ("/v1/completions", 200, {"prompt": SAID, "echo": True, "suffix": ""}),
    ("/completion", 200, {"prompt": SAID}),
    ("/infill", 200, {"input_prefix": SAID, "input_suffix": SAID}),
    ("/v1/responses", 200, {"input": SAID, "instructions": SAID, "metadata": {MARK: MARK}}),
    ("/v1/messages", 200, {"messages": [USER], "system": SAID, "max_tokens": 8}),
    ("/v1/embeddings", 200, {"input": SAID}),
    ("/tokenize", 200, {"content": SAID}),
    ("/rpc", 200, {"jsonrpc": "2.0", "id": MARK, "method": "get_completion", "params": RPC}),
]


def titles(duo: Duo) -> str:
    """Return what /proc shows everybody of duo's processes and threads."""
    ids = {duo.process.pid, *duo.descendants()}
    names = [path for id in ids for path in Path(f"/proc/{id}").glob("task/*/comm")]
    return "".join(path.read_text() for path in [*names, *(Path(f"/proc/{id}/cmdline") for id in ids)])


def streamed(duo: Duo, server: redis.Redis) -> set[bytes]:
    """Return the Redis keys that exist while a conversation is drafted for and left by its client."""
    body = {"messages": [USER], "stream": True, "max_tokens": 400, "ignore_eos": True}
    found: set[Any] = set()
    with httpx.stream("POST", duo.url + CHAT, json=body, timeout=60) as response:
        for _, _line in zip(range(60), response.iter_lines(), strict=False):
            found |= set(server.keys("*"))  # pyright: ignore[reportUnknownArgumentType, reportArgumentType]
    return found


def test_texts_stay_in_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "sitecustomize.py").write_text(EVERY_LEVEL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # drafters have it, too
    flags = ("--threads", "1", "--draft-mode", "async", "--no-gate", "--log-requests", "--log-format", "json")
    with Duo(tmp_path, "up", *flags) as duo, httpx.Client(base_url=duo.url, timeout=60) as client:
        duo.wait_until_ready(n_drafters=1)
        [socket] = tmp_path.glob("duo-redis-*/socket")
        with redis.Redis(unix_socket_path=str(socket)) as server:
            keys = streamed(duo, server)
        for path, status, body in REQUESTS:
            asked = body if "max_tokens" in body else {**body, "max_tokens": 8}
            response = client.post(path, json=body if path in ("/rpc", "/tokenize") else asked)
            assert response.status_code == status, (path, response.text)
        assert client.post(CHAT, content=f'{{"{MARK}').status_code == 400
        shown = titles(duo)
        duo.stop()
    log = duo.log.read_text()
    assert log.count(CHAT) > 5
    assert "every level: DEBUG" in log
    assert any(b":drafter:" in key for key in keys)
    assert "--log-requests" in shown
    told = [line for line in [*log.splitlines(), *map(repr, keys), *shown.split("\0")] if MARK in line]
    assert told == []
