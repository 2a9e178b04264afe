"""Tokens to text: whole characters only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.llama.fake import IM_END, FakeVocabulary
from server.text.detokenize import Detokenizer


def pieces(data: bytes) -> list[str]:
    detokenizer = Detokenizer(FakeVocabulary())
    return [detokenizer.feed(byte) for byte in data] + [detokenizer.flush()]


def test_a_character_of_four_tokens_comes_with_its_last_one():
    assert pieces("a😀b".encode()) == ["a", "", "", "", "😀", "b", ""]


def test_an_unfinished_character_is_replaced_at_the_end():
    assert pieces("né".encode()[:-1]) == ["n", "", "\ufffd"]


def test_broken_bytes_are_replaced_and_the_rest_goes_on():
    assert "".join(pieces(b"a\xffb\xc3c")) == "a\ufffdb\ufffdc"


def test_control_tokens_are_no_text():
    assert Detokenizer(FakeVocabulary()).feed(IM_END) == ""


@given(st.binary(max_size=40))
def test_any_bytes_give_what_they_give_at_once(data: bytes):
    assert "".join(pieces(data)) == data.decode(errors="replace")


@given(st.text(max_size=20))
def test_no_piece_of_a_text_has_a_replacement_that_the_text_has_not(text: str):
    text = text.replace("\ufffd", "")
    assert all("\ufffd" not in piece for piece in pieces(text.encode()))
