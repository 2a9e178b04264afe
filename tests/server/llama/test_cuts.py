"""Texts cut for a tokenizer: the tokens are those of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.llama import cuts
from server.llama.cuts import PIECE, Cuts

SPECIALS = ("<|im_start|>", "<|im_end|>", "<a>b", "b<c>", "\n\n", "\n\n\n", "<think>", "<think>x")


def partition(text: str, specials: tuple[str, ...] = SPECIALS) -> list[str]:
    """Return the text cut as llama.cpp does: the longest special tokens first, in what others have left."""
    fragments = [(text, False)]
    for special in sorted(specials, key=len, reverse=True):
        found: list[tuple[str, bool]] = []
        for fragment, done in fragments:
            first, *rest = [fragment] if done else fragment.split(special)
            found += [(first, done), *(pair for part in rest for pair in ((special, True), (part, False)))]
        fragments = found
    return [fragment for fragment, _ in fragments if fragment]


@given(st.lists(st.sampled_from([*SPECIALS, "b", "<", ">", "c>", "text ", "<a>", "\n", "x"]), max_size=30))
def test_pieces_keep_special_tokens(parts: list[str]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "PIECE", 1)
        text = "".join(parts)
        pieces = list(Cuts(SPECIALS, SPECIALS).pieces(text))
        assert "".join(pieces) == text
        assert [fragment for piece in pieces for fragment in partition(piece)] == partition(text)


def test_pieces_have_bounded_length():
    text = "<|im_start|>user\nhello<|im_end|>\n" * 80_000
    pieces = list(Cuts(SPECIALS, SPECIALS).pieces(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) < 2 * PIECE


@pytest.mark.parametrize("text", ["<a>b", "b<c>", "\n\n", "\n\n\n", "<think>"])
def test_overlapping_specials_are_not_cut(text: str):
    assert list(Cuts(SPECIALS, SPECIALS).pieces(text * PIECE)) == [text * PIECE]


def test_space_eating_tokens_are_not_cut():
    text = " <mask>" * PIECE
    assert list(Cuts(["<mask>", "</s>"], ["</s>"]).pieces(text)) == [text]
    assert list(Cuts([], []).pieces(text)) == [text]
