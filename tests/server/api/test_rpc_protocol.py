"""POST /rpc keeps the rules of JSON-RPC 2.0: batches, notifications, ids and errors."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.contract.contract import validate
from tests.fake_backend import FakeBackend, FakeModel
from tests.http_lead import Lead, serving
from tests.server.api.rpc_calls import PROMPT, post, result
from tests.support import ENDLESS


@pytest.fixture
def endless() -> Generator[Lead]:
    """Yield a lead with endless replies at 2 ms a token, two slots and a queue of three in all."""
    backend = FakeBackend(FakeModel(eog_rate=0.0), n_ctx=ENDLESS, n_cells=ENDLESS, step_s=0.002)
    with serving(backend, max_queued=3, n_slots=2) as one:
        yield one


def test_a_batch_is_answered_in_its_order(lead: Lead):
    body: list[Any] = [
        {"jsonrpc": "2.0", "id": "a", "method": "tokenize", "params": {"text": "x"}},
        {"jsonrpc": "2.0", "method": "tokenize", "params": {"text": "nobody hears this"}},
        {"jsonrpc": "2.0", "id": 1.5, "method": "get_completion", "params": [PROMPT, 5]},
        {"jsonrpc": "2.0", "id": None, "method": "nothing"},
        5,
        {"jsonrpc": "2.0", "id": {}, "method": "init"},
    ]
    response = post(lead, body)
    assert response.status_code == 200
    replies = response.json()
    validate("RpcBatchReply", replies)
    assert [reply["id"] for reply in replies] == ["a", 1.5, None, None, None]
    assert replies[0]["result"] == {"tokens": [120], "length": 1}
    assert replies[1]["result"]["tokens_predicted"] == 5
    assert [reply["error"]["code"] for reply in replies[2:]] == [-32601, -32600, -32600]
    lead.until_idle()


@pytest.mark.parametrize(
    "body",
    [
        {"jsonrpc": "2.0", "method": "poll_system_status"},
        {"jsonrpc": "2.0", "method": "nothing"},
        {"jsonrpc": "2.0", "method": "get_completion", "params": {"prompt": "x"}},
        {"jsonrpc": "2.0", "method": "async_completion_init", "params": {"prompt": "x"}},
        [{"jsonrpc": "2.0", "method": "init"}, {"jsonrpc": "2.0", "method": "tokenize", "params": [5]}],
    ],
    ids=str,
)
def test_notifications_are_not_answered_and_generate_nothing(lead: Lead, body: Any):
    before = result(lead, "speculative_status")["tokens_predicted"]
    response = post(lead, body)
    assert (response.status_code, response.content) == (204, b"")
    assert result(lead, "speculative_status")["tokens_predicted"] == before
    assert len(lead.services.handles) == 0


def test_a_notification_may_cancel(endless: Lead):
    handle = result(endless, "async_completion_init", {"prompt": "x"})["handle"]
    cancel = {"jsonrpc": "2.0", "method": "async_completion_cancel", "params": {"handle": handle}}
    assert post(endless, cancel).status_code == 204
    endless.until_idle()


@pytest.mark.parametrize(
    ("body", "code", "id"),
    [
        (b"{", -32700, None),
        (b"", -32700, None),
        (b"\xff", -32700, None),
        (b"[" * 2000, -32700, None),
        ([], -32600, None),
        ([{"jsonrpc": "2.0", "id": 1, "method": "init"}] * 33, -32600, None),
        (1, -32600, None),
        ("null", -32600, None),
        ({}, -32600, None),
        ({"jsonrpc": "1.0", "id": 4, "method": "init"}, -32600, 4),
        ({"jsonrpc": 2.0, "id": 4, "method": "init"}, -32600, 4),
        ({"jsonrpc": "2.0", "id": "x", "method": 1}, -32600, "x"),
        ({"jsonrpc": "2.0", "id": "x"}, -32600, "x"),
        ({"jsonrpc": "2.0", "id": "x", "method": "init", "params": "y"}, -32600, "x"),
        ({"jsonrpc": "2.0", "id": "x", "method": "init", "params": None}, -32600, "x"),
        ({"jsonrpc": "2.0", "id": True, "method": "init"}, -32600, None),
        ({"jsonrpc": "2.0", "id": [1], "method": "init"}, -32600, None),
        ({"jsonrpc": "2.0", "id": "", "method": "rpc.init"}, -32601, ""),
        ({"jsonrpc": "2.0", "id": -1, "method": "tokenize", "params": {"text": 5}}, -32602, -1),
        ({"jsonrpc": "2.0", "id": 0, "method": "tokenize", "params": ["a", "b"]}, -32602, 0),
        ({"jsonrpc": "2.0", "id": 2, "method": "init", "params": ["toy"]}, -32602, 2),
    ],
    ids=lambda value: str(value)[:60],
)
def test_the_specification_s_errors(lead: Lead, body: Any, code: int, id: Any):
    response = post(lead, body)
    assert response.status_code == 200
    reply = response.json()
    validate("RpcReply", reply)
    assert (reply["error"]["code"], reply["id"]) == (code, id)
