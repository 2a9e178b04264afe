"""The index over resident sequences: what a new prompt reuses, and what goes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.cache.prefix import PrefixCache, Reuse, common_prefix

TOKENS = st.lists(st.integers(0, 2), max_size=20)


@given(TOKENS, TOKENS)
def test_common_prefix_is_what_a_loop_finds(a: list[int], b: list[int]):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    assert common_prefix(a, b) == n


def test_the_longest_common_prefix_is_reused_but_for_the_last_token():
    cache = PrefixCache(3)
    for tokens in ([1, 2, 3], [1, 2, 3, 4, 5], [9]):
        reuse = cache.take(tokens)
        assert reuse is not None
        cache.release(reuse.seq, tokens)
    assert cache.take([1, 2, 3, 4, 5]) == Reuse(0, 4, 0)


def test_an_unrelated_prompt_takes_an_empty_sequence_then_the_oldest():
    cache = PrefixCache(2)
    cache.release(0, [1, 2, 3])
    assert cache.take([7, 8]) == Reuse(1, 0, 0)
    cache.release(1, [7, 8])
    assert cache.take([5, 5]) == Reuse(0, 0, 1)


def test_a_short_shared_beginning_is_copied_and_does_not_cost_the_other_conversation():
    cache = PrefixCache(2)
    cache.release(0, [1] + [2] * 50)
    assert cache.take([1, 3, 3]) == Reuse(1, 1, 0)
    assert cache.n_cells == 51


def test_all_busy_means_none():
    cache = PrefixCache(1)
    assert cache.take([1, 2]) is not None
    assert cache.take([1, 2]) is None
    assert cache.n_busy == 1


def test_eviction_takes_the_least_recently_used_and_never_a_busy_one():
    cache = PrefixCache(3)
    for seq, tokens in enumerate([[1, 1], [2, 2], [3, 3]]):
        cache.release(seq, tokens)
    assert cache.take([1, 1, 5]) == Reuse(0, 2, 0)
    assert cache.n_cells == 4
    assert [cache.evict(), cache.evict(), cache.evict()] == [1, 2, None]
    assert cache.n_cells == 0


def test_without_partial_reuse_only_a_whole_sequence_counts():
    cache = PrefixCache(2, partial=False)
    cache.release(0, [1, 2, 3, 4])
    assert cache.take([1, 2, 3]) == Reuse(1, 0, 0)
    cache.release(1, [])
    assert cache.take([1, 2, 3, 4, 5]) == Reuse(0, 4, 0)
