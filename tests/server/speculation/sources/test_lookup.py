"""Lookup: what it guesses, against a plain search, and how sure it says it is."""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.speculation.sources.lookup import (
    MAX_LENGTH,
    POOL_TOKENS,
    Lookup,
    LookupPool,
    PredictedReply,
    grams,
    match_rates,
    rates_after,
)

few = st.lists(st.integers(0, 3), max_size=60)


def looked_up(tokens: list[int], n: int = 4, pool: LookupPool | None = None) -> list[int]:
    lookup = Lookup(pool=pool)
    lookup.extend(tokens)
    return lookup.guess(n)[0]


def searched(tokens: list[int], max_ngram: int, min_ngram: int) -> tuple[int, int]:
    """Return (end, length) of the latest longest suffix that occurred before, or (0, 0)."""
    for length in range(min(max_ngram, len(tokens) - 1), min_ngram - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                return end, length
    return 0, 0


def test_latest_continuation_is_guessed():
    assert looked_up([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5, 9]


def test_longest_match_beats_most_recent():
    assert looked_up([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 1) == [3]


def test_the_most_recent_of_equal_matches_wins():
    assert looked_up([1, 2, 3, 9, 1, 2, 4, 8, 1, 2], 1) == [4]


def test_one_token_is_no_match():
    assert looked_up([1, 2, 3, 1]) == []


def test_short_repetition_continues():
    assert looked_up([5, 6, 5, 6, 5, 6], 7) == [5, 6, 5, 6, 5, 6, 5]


def test_long_match_outlasts_recent_short():
    once = [1, 2, 3, 4, 5, 6, 7]
    assert looked_up([*once, 8, 0, 3, 4, 5, 6, 7, 9, 0, *once], 1) == [8]


@given(few, st.integers(1, 3), st.integers(0, 3))
def test_lookup_equals_plain_search(tokens: list[int], min_ngram: int, more: int):
    lookup = Lookup(min_ngram=min_ngram, max_ngram=min_ngram + more)
    for i, token in enumerate(tokens):
        lookup.extend([token])
        so_far = tokens[: i + 1]
        end, length = searched(so_far, min_ngram + more, min_ngram)
        guessed, confidences = lookup.guess(3)
        if length < min_ngram + more:
            expected = (so_far[end:] * 3)[:3] if length else []
            assert guessed == expected
        else:  # a match longer than the index knows is followed: it must be one, and no shorter
            places = range(min_ngram + more, len(so_far))
            agree = [e for e in places if so_far[e - min_ngram - more : e] == so_far[-min_ngram - more :]]
            assert guessed in [(so_far[e:] * 3)[:3] for e in agree]
        assert (len(guessed) == 3) == (length > 0)
        assert len(guessed) == len(confidences)


@given(few, st.lists(st.integers(1, 10), max_size=10))
def test_portions_make_no_difference(tokens: list[int], portions: list[int]):
    lookup, at = Lookup(), 0
    for portion in [*portions, len(tokens)]:
        lookup.extend(tokens[at : at + portion])
        at += portion
    whole = Lookup()
    whole.extend(tokens)
    assert lookup.guess(5) == whole.guess(5)


# -- the pool


def pool_of(*texts: Sequence[int], max_tokens: int = POOL_TOKENS) -> LookupPool:
    pool = LookupPool(max_tokens)
    for text in texts:
        pool.add(text)
        pool.index(len(text))
    return pool


def found(pool: LookupPool, ngram: Sequence[int]) -> tuple[list[int], int] | None:
    (gram,) = grams(ngram, len(ngram))
    return pool.find(gram)


def test_other_texts_fill_silence():
    pool = pool_of([1, 2, 3, 4, 5, 6])
    assert looked_up([9, 2, 3, 4], pool=pool) == [5, 6]
    assert looked_up([2, 3, 4, 8, 2, 3, 4], 1, pool) == [8]


def test_other_texts_end_ends_guess():
    pool = pool_of([1, 2, 3, 4])
    assert looked_up([1, 2, 3, 4], pool=pool) == []


def test_another_text_is_followed():
    pool = pool_of([1, 2, 3, 7, 7, 7, 8, 7, 7, 7, 9])
    assert looked_up([1, 2, 3, 7, 7, 7], 1, pool) == [8]


def test_the_oldest_texts_are_forgotten():
    texts = [[*range(start, start + 8)] for start in range(0, 400, 10)]
    pool = pool_of(*texts, max_tokens=20)
    assert pool.n_tokens == 16
    assert [bool(looked_up(text[:3], pool=pool)) for text in texts] == [False] * 38 + [True] * 2
    for _ in range(3):
        pool.add([1, 2, 3, 4, 5])
        pool.index(5)
    assert looked_up([1, 2, 3], pool=pool) == [4, 5]


def test_overlong_text_keeps_its_end():
    pool = pool_of(range(100), max_tokens=10)
    assert (pool.n_tokens, found(pool, [91, 92, 93])) == (10, ([*range(90, 100)], 4))


def test_too_short_texts_are_dropped():
    pool = pool_of([1, 2, 3])
    assert (pool.n_tokens, found(pool, [1, 2, 3])) == (0, None)


def test_partly_indexed_text_is_known():
    pool = LookupPool()
    pool.add([1, 2, 3, 4, 5, 6])
    pool.add([7, 8, 9, 1])
    assert pool.is_behind
    assert (pool.n_tokens, found(pool, [1, 2, 3])) == (0, None)
    assert pool.index(2) == 2
    assert found(pool, [2, 3, 4]) is not None
    assert found(pool, [3, 4, 5]) is None
    assert pool.index(100) == 2
    assert not pool.is_behind
    assert looked_up([3, 4, 5], pool=pool) == [6]
    assert looked_up([7, 8, 9], pool=pool) == [1]
    assert pool.index(100) == 0


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 15)), max_size=40))
def test_full_pool_follows_latest_end(
    steps: list[tuple[list[int], int]],
):
    """Each step adds a text and indexes some tokens, so some texts are dropped before they are known."""
    pool = LookupPool(max_tokens=20)
    for text, n in steps:
        pool.add(text)
        pool.index(n)
    assert pool.n_tokens <= 20
    for gram in itertools.product(range(4), repeat=pool.ngram):
        if there := found(pool, gram):
            text, end = there
            assert (*text[end - pool.ngram : end],) == gram
            assert end < len(text)
    pool.add([1, 2, 3, 0, 1, 2])
    pool.index(100)
    assert found(pool, [2, 3, 0]) == ([1, 2, 3, 0, 1, 2], 4)


def test_a_full_pool_costs_garbage_collections_little():
    pool = pool_of(*([i, i + 1, *range(i, i + 100)] for i in range(100)))
    gc.collect()
    assert not any(map(gc.is_tracked, pool._ends))  # pyright: ignore[reportPrivateUsage]
    assert not any(map(gc.is_tracked, pool._ends.values()))  # pyright: ignore[reportPrivateUsage]


def test_latest_waiting_texts_are_kept():
    pool = LookupPool(max_tokens=10)
    for start in range(0, 60, 10):
        pool.add(range(start, start + 5))
    assert pool.index(100) == 4
    known = [bool(looked_up([i, i + 1, i + 2], pool=pool)) for i in range(0, 60, 10)]
    assert known == [False] * 4 + [True] * 2


# -- confidence


def test_confidence_grows_with_match_length():
    lookup = Lookup()
    lookup.extend([*range(40), 10, 11])
    _, confidences = lookup.guess(20)
    assert confidences == sorted(confidences)
    assert 0.0 < confidences[0] < confidences[-1] < 1.0


def test_confidence_follows_what_was_measured():
    chance = random.Random(1)
    rates = match_rates()
    for _ in range(400):
        rates.observe((3, chance.random() < 0.9))
        rates.observe((2, chance.random() < 0.2))
    assert rates_after(rates, 3, 1)[0] == pytest.approx(0.9, abs=0.1)
    assert rates_after(rates, 2, 1)[0] == pytest.approx(0.2, abs=0.1)


def test_failed_repetition_lowers_confidence():
    lookup = Lookup()
    for i in range(60):
        lookup.extend([1, 2, 100 + i])
    lookup.extend([1, 2])
    assert lookup.guess(1)[1][0] < 0.1


# -- what the client expects


EXPECTED = [*range(100, 140)]


def predicted(reply: list[int], n: int = 3) -> list[int]:
    prediction = PredictedReply(EXPECTED)
    prediction.extend(reply)
    return prediction.guess(n)[0]


def test_a_prediction_begins_at_its_beginning():
    assert predicted([]) == [100, 101, 102]
    assert predicted(EXPECTED[:7]) == [107, 108, 109]


def test_a_replaced_token_is_stepped_over():
    assert predicted([*EXPECTED[:5], 7]) == [106, 107, 108]


def test_prediction_recovers_after_edits():
    assert predicted([*EXPECTED[:5], 7, 8, 9, *EXPECTED[5:8]]) == [108, 109, 110]
    assert predicted([*EXPECTED[:5], *EXPECTED[20:23]]) == [123, 124, 125]


def test_next_of_several_places_wins():
    refrain = [1, 2, 3]
    prediction = PredictedReply([*refrain, 10, *refrain, 11, *refrain, 12])
    prediction.extend([*refrain, 10, 99, 98, 97, *refrain])
    assert prediction.guess(1)[0] == [11]


def test_a_prediction_ends():
    assert predicted(EXPECTED) == []
    assert predicted([*EXPECTED, 1, 2, 3]) == []
    assert PredictedReply([]).guess(4) == ([], [])


def test_prediction_confidence_follows_results():
    wrong, right = PredictedReply(EXPECTED), PredictedReply(EXPECTED)
    wrong.extend([7] * 12)
    right.extend(EXPECTED[:12])
    assert wrong.guess(1)[1][0] < 0.2
    assert right.guess(1)[1][0] > 0.9


@given(few, few)
def test_prediction_says_only_its_content(text: list[int], reply: list[int]):
    prediction = PredictedReply(text, ngram=2)
    for token in reply:
        prediction.extend([token])
        guessed, confidences = prediction.guess(4)
        assert len(guessed) == len(confidences)
        assert any(text[i : i + len(guessed)] == guessed for i in range(len(text) + 1))


# -- pace


def test_a_token_costs_microseconds():
    """The text matches half of the time. The bound is a multiple of the time, for noisy machines."""
    chance = random.Random(2)
    pool = pool_of([chance.randrange(60) for _ in range(4096)])
    tokens = [chance.randrange(60) for _ in range(4096)]
    best = float("inf")
    for _ in range(5):
        lookup = Lookup(pool=pool)
        began = time.thread_time()
        for token in tokens:
            lookup.extend((token,))
            lookup.guess(8)
        best = min(best, time.thread_time() - began)
    assert best / len(tokens) < 30e-6


def test_lengths_beyond_counting_equal_longest():
    assert len(set(rates_after(match_rates(), MAX_LENGTH, 5))) == 1
