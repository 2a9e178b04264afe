"""The store of responses: what it keeps, and for whom."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from server.replies.kept import KeptBounds, ResponseStore, StoredResponse


def stored(id: str, text: str = "") -> StoredResponse:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    return StoredResponse({"id": id}, messages)


def test_stored_response_lives_until_deleted():
    store = ResponseStore()
    store.put("", stored("a"))
    assert store.get("", "a") == stored("a")
    assert store.delete("", "a")
    assert store.get("", "a") is None
    assert not store.delete("", "a")
    assert store.n_bytes == len(store) == 0


def test_other_salts_find_nothing():
    store = ResponseStore()
    store.put("one", stored("a"))
    assert store.get("", "a") is None
    assert not store.delete("two", "a")
    assert store.get("one", "a") is not None


def test_the_least_recently_used_is_forgotten_first():
    store = ResponseStore(KeptBounds(most=2))
    for id in ("a", "b"):
        store.put("", stored(id))
    assert store.get("", "a")
    store.put("", stored("c"))
    assert [id for id in "abc" if store.get("", id)] == ["a", "c"]


def test_oversized_response_evicts_nobody():
    store = ResponseStore(KeptBounds(most_bytes=200))
    store.put("", stored("a"))
    store.put("", stored("b", "x" * 300))
    assert store.get("", "a")
    assert store.get("", "b") is None


@given(
    st.lists(st.tuples(st.sampled_from("pgd"), st.integers(0, 5), st.integers(0, 60)), max_size=40),
    st.integers(1, 4),
    st.integers(50, 300),
)
def test_bounds_hold_whatever_is_done(acts: list[tuple[str, int, int]], most: int, most_bytes: int):
    store = ResponseStore(KeptBounds(most, most_bytes))
    ids = {f"r{i}" for i in range(len(acts))}
    for number, (act, which, size) in enumerate(acts):
        if act == "p":
            store.put("s", stored(f"r{number}", "x" * size))
        elif act == "g":
            store.get("s", f"r{which}")
        else:
            store.delete("s", f"r{which}")
        assert len(store) <= most
        assert 0 <= store.n_bytes <= most_bytes
    for id in ids:
        store.delete("s", id)
    assert store.n_bytes == len(store) == 0


def test_overdue_response_is_gone():
    now = [0.0]
    store = ResponseStore(KeptBounds(kept_s=5), clock=lambda: now[0])
    kept = StoredResponse({"id": "a", "output": [{"id": "msg_1"}]}, [])
    store.put("", kept)
    now[0] = 4.9
    assert (store.get("", "a"), store.item("", "msg_1")) == (kept, {"id": "msg_1"})
    now[0] = 5.0
    assert (store.item("", "msg_1"), store.get("", "a"), store.n_bytes) == (None, None, 0)


def test_put_replaces_the_same_id():
    store = ResponseStore()
    for text in ("one", "two"):
        store.put("", stored("a", text))
    assert (store.get("", "a"), len(store)) == (stored("a", "two"), 1)
    assert store.n_bytes == len(stored("a", "two").encoded())
