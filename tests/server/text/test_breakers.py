"""Texts that a repetition may not cross, as tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from server.text.breakers import breaker_tokens
from tests.fake_backend import FakeVocabulary


class Words(FakeVocabulary):
    """A tokenizer of words, the longest match first."""

    words = (b'."', b"\n\n", b" User", b":", b"User", b'"', b"\n", b"\xc3", b"\xa9", b"a.b", b"axb")
    size = len(words)

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        data, tokens = text.encode(), list[int]()
        while data:
            word = max((w for w in self.words if data.startswith(w)), key=len)
            tokens.append(self.words.index(word))
            data = data[len(word) :]
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self.words[token]


@pytest.mark.parametrize(
    ("breakers", "expected"),
    [
        (['"'], {(5,), (0,)}),
        (["\n"], {(6,), (1,)}),
        (["User:"], {(4, 3)}),
        (["User"], {(4,), (2,)}),
        (["é"], {(7, 8)}),
        (["a.b"], {(9,)}),
        ([":", "\n\n"], {(3,), (1,)}),
        ([], set[tuple[int, ...]]()),
    ],
    ids=str,
)
def test_breaker_is_found_inside_tokens(breakers: Sequence[str], expected: set[tuple[int, ...]]):
    found = breaker_tokens(Words(), tuple(breakers))
    assert set(found) == expected
    assert len(found) == len(expected)
