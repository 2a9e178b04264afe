"""The store in memory: bounds for each API key, logs that live with their response, changes."""

from __future__ import annotations

from typing import Any

import pytest

from server.errors import StoreError
from server.replies.kept import KeptBounds, StoredResponse, with_items
from server.replies.memory import MemoryStore
from server.replies.store import Owner
from tests.server.replies.reading import event, read

ANNA, BERT = Owner("salt of anna", "anna"), Owner("salt of bert", "bert")


def stored(id: str, **more: Any) -> StoredResponse:
    return StoredResponse({"id": id, **more}, [])


async def test_flood_of_one_key_spares_others():
    store = MemoryStore(KeptBounds(most=10))
    store.put(BERT, stored("resp_b"))
    for i in range(100):
        store.put(Owner(f"salt {i}", "anna"), stored(f"resp_{i}"))
    assert await store.get(BERT.salt, "resp_b") == stored("resp_b")
    found = [i for i in range(100) if await store.get(f"salt {i}", f"resp_{i}")]
    assert found == list(range(90, 100))


async def test_log_goes_with_its_response():
    store = MemoryStore(KeptBounds(most=2))
    for i in range(4):
        log = store.begin_log(ANNA, f"resp_{i}")
        log.append(event(0))
        store.put(ANNA, stored(f"resp_{i}"))
        assert await store.is_written(ANNA.salt, f"resp_{i}")
        log.end()
        assert not await store.is_written(ANNA.salt, f"resp_{i}")
    assert store.n_logs == 2
    assert await store.log(ANNA.salt, "resp_1") is None
    assert await store.log(BERT.salt, "resp_3") is None
    last = await store.log(ANNA.salt, "resp_3")
    assert last is not None
    assert await read(last) == event(0)
    assert await store.delete(ANNA, "resp_3")
    assert (await store.log(ANNA.salt, "resp_3"), store.n_logs) == (None, 1)


async def test_log_counts_for_its_response():
    store = MemoryStore(KeptBounds(most_bytes=500))
    log = store.begin_log(ANNA, "resp_1")
    store.put(ANNA, stored("resp_1", status="queued"))
    log.append(event(0) * 100)
    store.put(ANNA, stored("resp_1", status="completed"))
    log.end()
    assert await store.get(ANNA.salt, "resp_1") is None
    assert store.n_logs == 0


async def test_change_replaces_or_refuses():
    store = MemoryStore(KeptBounds(most_bytes=300))
    store.put(ANNA, stored("conv_1"))
    item = {"id": "msg_1", "text": "x" * 100}
    changed = await store.change(ANNA, "conv_1", lambda one: with_items(one, [item]))
    assert changed == await store.get(ANNA.salt, "conv_1")
    assert await store.item(ANNA.salt, "msg_1") == item
    assert changed
    assert with_items(changed, [item]) == changed, "a change may be tried twice"
    assert await store.change(BERT, "conv_1", lambda one: one) is None
    with pytest.raises(StoreError) as caught:
        await store.change(
            ANNA, "conv_1", lambda one: with_items(one, [item | {"id": f"msg_{i}"} for i in (2, 3)])
        )
    assert caught.value.status == 413
    assert changed == await store.get(ANNA.salt, "conv_1")
