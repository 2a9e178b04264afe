"""The radix tree beside a dictionary that is searched from end to end."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from server.cache.radix import RadixIndex, common_prefix
from tests.checks import check_radix

TOKENS = st.lists(st.integers(0, 1), max_size=6)
KEYS = st.integers(0, 7)
SALTS = st.sampled_from(["", "other"])


def common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


@given(TOKENS, TOKENS)
def test_common_prefix_is_what_a_loop_finds(a: list[int], b: list[int]):
    assert common_prefix(a, b) == common(a, b)


class Interleavings(RuleBasedStateMachine):
    """A radix tree beside a plain list.

    entries: sequence and salt of each key, the latest used last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.index: RadixIndex[int] = RadixIndex()
        self.entries: dict[int, tuple[list[int], str]] = {}

    def others(self, salt: str) -> dict[int, list[int]]:
        return {key: tokens for key, (tokens, of) in self.entries.items() if of == salt}

    @rule(key=KEYS, tokens=TOKENS, salt=SALTS)
    def insert(self, key: int, tokens: list[int], salt: str) -> None:
        self.index.insert(key, tokens, salt)
        self.entries.pop(key, None)
        self.entries[key] = list(tokens), salt
        tokens.append(9)  # what becomes of the list is nobody's business

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        if self.entries.pop(key, None) is not None:
            self.index.remove(key)
        with pytest.raises(KeyError):
            self.index.remove(key)

    @rule(tokens=TOKENS, salt=SALTS)
    def match(self, tokens: list[int], salt: str) -> None:
        lengths = {key: common(held, tokens) for key, held in self.others(salt).items()}
        assert self.index.match(tuple(tokens), salt) == best(lengths)

    @rule(tokens=TOKENS, salt=SALTS)
    def match_whole(self, tokens: list[int], salt: str) -> None:
        held = self.others(salt)
        lengths = {key: len(h) for key, h in held.items() if h == tokens[: len(h)]}
        assert self.index.match_whole(tokens, salt) == best(lengths)

    @rule(key=KEYS)
    def shared(self, key: int) -> None:
        if key in self.entries:
            tokens, salt = self.entries[key]
            lengths = [common(held, tokens) for other, held in self.others(salt).items() if other != key]
            assert self.index.shared(key) == max(lengths, default=0)

    @invariant()
    def holds_the_same_keys(self) -> None:
        assert check_radix(self.index) == len(self.entries)
        assert all(key in self.index for key in self.entries)


def best(lengths: dict[int, int]) -> tuple[int, int | None]:
    """Return the longest length and its key, of equals the last."""
    length = max(lengths.values(), default=0)
    return (length, [key for key, n in lengths.items() if n == length][-1]) if length else (0, None)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_equal_sequences_survive_removals():
    index: RadixIndex[str] = RadixIndex()
    index.insert("first", [1, 2, 3])
    index.insert("second", [1, 2, 3])
    assert index.match([1, 2, 3, 4]) == index.match_whole([1, 2, 3, 4]) == (3, "second")
    index.insert("first", [1, 2, 3])
    assert index.match([1, 2, 9]) == (2, "first")
    assert index.match_whole([1, 2, 3, 4]) == (3, "first")
    index.remove("first")
    assert index.match([1, 2, 3]) == (3, "second")
    index.remove("second")
    assert index.match([1, 2, 3]) == (0, None)


def test_another_salt_is_another_world():
    index: RadixIndex[int] = RadixIndex()
    index.insert(1, [1, 2, 3], "mine")
    assert index.match([1, 2, 3], "mine") == (3, 1)
    assert index.match([1, 2, 3]) == index.match_whole([1, 2, 3], "yours") == (0, None)
    index.insert(1, [1, 2], "yours")  # the key moves
    assert index.match([1, 2, 3], "mine") == (0, None)
    assert index.match([1, 2, 3], "yours") == (2, 1)


def test_search_time_ignores_sequence_count():
    rng = random.Random(0)
    document = [rng.randrange(150_000) for _ in range(1000)]
    sequences = [[*document, *(rng.randrange(150_000) for _ in range(2000))] for _ in range(1000)]
    index: RadixIndex[int] = RadixIndex()
    for key, tokens in enumerate(sequences):
        index.insert(key, tokens)
    check_radix(index)
    prompts = {key: [*map(int, map(str, sequences[key])), 7] for key in range(0, 1000, 10)}  # no shared ints
    searching: list[float] = []
    comparing: list[float] = []
    for key, prompt in prompts.items():
        began = time.thread_time()
        found = index.match(prompt)
        searched = time.thread_time()
        assert prompt[:-1] == sequences[key]
        comparing.append(time.thread_time() - searched)
        searching.append(searched - began)
        assert found == (3000, key)
    assert min(searching) < 10 * min(comparing)
