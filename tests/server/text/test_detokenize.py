"""Tokens to text, whole characters only, and tokens beside the text they are made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.detokenize import Alignment, Detokenizer, Span
from tests.fake_backend import IM_END, FakeVocabulary, Spacing


def pieces(data: bytes) -> list[str]:
    detokenizer = Detokenizer(FakeVocabulary())
    return [detokenizer.feed(byte) for byte in data] + [detokenizer.flush()]


def test_split_character_comes_last():
    assert pieces("a😀b".encode()) == ["a", "", "", "", "😀", "b", ""]


def test_unfinished_character_is_replaced():
    assert pieces("né".encode()[:-1]) == ["n", "", "\ufffd"]


def test_broken_bytes_are_replaced():
    assert "".join(pieces(b"a\xffb\xc3c")) == "a\ufffdb\ufffdc"


def test_control_tokens_are_no_text():
    assert Detokenizer(FakeVocabulary()).feed(IM_END) == ""


@pytest.mark.parametrize(
    ("vocabulary", "begins", "said", "text"),
    [
        (Spacing(), True, " hello you", "hello you"),
        (Spacing(), True, "  hello", " hello"),
        (Spacing(), True, "hello", "hello"),
        (Spacing(), False, " hello", " hello"),
        (FakeVocabulary(), True, " hello", " hello"),
    ],
)
def test_first_tokenizer_space_is_dropped(vocabulary: FakeVocabulary, begins: bool, said: str, text: str):
    detokenizer = Detokenizer(vocabulary, begins=begins)
    assert detokenizer.feed(IM_END) == ""
    assert "".join(map(detokenizer.feed, said.encode())) == text


@given(st.binary(max_size=40))
def test_bytes_decode_the_same_incrementally(data: bytes):
    assert "".join(pieces(data)) == data.decode(errors="replace")


@given(st.text(max_size=20))
def test_pieces_add_no_replacements(text: str):
    text = text.replace("\ufffd", "")
    assert all("\ufffd" not in piece for piece in pieces(text.encode()))


def positions(spans: list[Span]) -> list[int]:
    return [span.position for span in spans]


def test_a_token_waits_for_its_whole_text():
    alignment = Alignment()
    alignment.add(0, "ab", unfinished=False)
    alignment.add(1, "c", unfinished=False)
    assert positions(alignment.released(1)) == []
    assert positions(alignment.released(2)) == [0]
    assert positions(alignment.released(3)) == [1]
    assert positions(alignment.released(3)) == []


def test_shared_character_belongs_to_both():
    alignment = Alignment()
    alignment.add(4, "x", unfinished=True)
    assert positions(alignment.released(1)) == []
    alignment.add(5, "é", unfinished=False)
    assert positions(alignment.released(1)) == []
    assert positions(alignment.released(2)) == [4, 5]


def test_textless_token_follows_previous():
    alignment = Alignment()
    alignment.add(0, "ab", unfinished=False)
    alignment.add(1, "", unfinished=False)
    assert positions(alignment.released(1)) == []
    assert positions(alignment.released(2)) == [0, 1]


def test_cut_drops_what_lies_beyond():
    alignment = Alignment()
    alignment.add(0, "ab", unfinished=False)
    alignment.add(1, "cd", unfinished=False)
    alignment.add(2, "", unfinished=False)
    alignment.add(3, "ef", unfinished=False)
    assert positions(alignment.released(3, cut=True)) == [0, 1]
    assert positions(alignment.released(99)) == []
