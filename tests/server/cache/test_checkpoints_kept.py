"""The index over sequences that cannot be trimmed, but to a mark."""

from __future__ import annotations

from server.cache.prefix import PrefixCache, Reuse
from tests.checks import check_prefixes
from tests.server.cache.test_prefix import text


def test_untrimmable_sequence_returns_to_mark():
    cache = PrefixCache(2, partial=False)
    cache.release(0, text(1, 50), checkpoint=30)
    check_prefixes(cache)
    assert cache.longest([*text(1, 50), 7][:-1], {}, "")[1] == 50
    assert cache.longest([*text(1, 40), 7, 7][:-1], {}, "")[1] == 30
    assert cache.longest([*text(1, 29), 7, 7][:-1], {}, "")[1] == 0
    assert cache.take([*text(1, 40), 7, 7]) == Reuse(0, 30, 0)
    check_prefixes(cache)
    cache.release(0, text(1, 60))
    assert cache.longest([*text(1, 40), 7, 7][:-1], {}, "")[1] == 0, "the mark went with the conversation"


def test_a_mark_is_for_its_salt_only():
    cache = PrefixCache(2, partial=False)
    cache.release(0, text(1, 50), "one", checkpoint=30)
    assert cache.longest([*text(1, 40), 7][:-1], {}, "another")[1] == 0


def test_other_conversation_copies_the_mark():
    cache = PrefixCache(2, partial=False)
    cache.release(0, text(1, 1000), checkpoint=300)
    assert cache.take([*text(1, 300), 7, 7]) == Reuse(1, 300, 0)
