"""Pictures by their words and ids: what is known, for how long, and what a vocabulary makes of it."""

from __future__ import annotations

import gc

import pytest

from server.llama.backend import PICTURE_IDS
from server.pictures import registry
from server.pictures.picture import Picture
from server.pictures.pixels import Pixels
from server.pictures.registry import Pictures
from server.pictures.vocabulary import PictureVocabulary
from server.text.transcript import Transcript
from tests.fake_backend import FakeVocabulary, Spacing
from tests.server.pictures.drawn import Painter

RED, BLUE = (Pixels(1, 1, data) for data in (b"\xff\x00\x00", b"\x00\x00\xff"))


def picture_of(pictures: Pictures, pixels: Pixels = RED) -> Picture:
    return pictures.of(pixels, lambda n: None)


def test_ids_are_those_of_the_pixels():
    painter = Painter()
    pictures = Pictures(painter)
    red = picture_of(pictures)
    assert picture_of(pictures) is red
    assert painter.n_calls == 1
    other = Pictures(Painter())
    assert picture_of(other).ids == red.ids, "caches outlive the process"
    assert picture_of(other).word != red.word, "words do not"
    assert not set(picture_of(pictures, BLUE).ids) & set(red.ids)
    assert all(PICTURE_IDS <= id < 2 * PICTURE_IDS for id in red.ids)
    assert len(set(red.ids)) == 22


def test_other_projectors_have_other_ids():
    painter = Painter()
    painter.identity = b"another"
    assert not set(picture_of(Pictures(painter)).ids) & set(picture_of(Pictures(Painter())).ids)


def test_shared_ids_are_given_once(monkeypatch: pytest.MonkeyPatch):
    pictures, ids_of = Pictures(Painter(), most_bytes=0), registry.ids_of
    red = picture_of(pictures)
    given = iter([(*red.ids[:1], *range(PICTURE_IDS, PICTURE_IDS + 21)), (PICTURE_IDS,) * 22])

    def given_ids(digest: bytes) -> tuple[int, ...]:
        return next(given, None) or ids_of(digest)

    monkeypatch.setattr(registry, "ids_of", given_ids)
    blue = picture_of(pictures, BLUE)
    assert not set(blue.ids) & set(red.ids)
    assert len(set(blue.ids)) == 22
    ids, word = blue.ids, blue.word
    del blue
    picture_of(pictures)  # the latest, the only one that is kept
    again = picture_of(pictures, BLUE)
    assert again.ids != ids
    assert again.word != word, "no kept text names a picture that has other ids now"


def test_the_oldest_pictures_are_forgotten():
    painter = Painter()
    pictures = Pictures(painter, most_bytes=picture_of(Pictures(painter)).n_bytes)
    red = picture_of(pictures)
    held, word, id = pictures.spans(red.ids), red.word, red.ids[0]
    del red
    blue = picture_of(pictures, BLUE)
    gc.collect()
    assert pictures.with_id(id) is held[0].picture, "a request needs it"
    del held
    gc.collect()
    assert pictures.with_id(id) is None
    assert pictures.pieces(f"a {word}") == [f"a {word}"]
    assert pictures.pieces(f"{blue.word} b") == [blue, " b"]
    assert painter.n_calls == 3


@pytest.mark.parametrize("inner", [FakeVocabulary(), Spacing()])
def test_words_become_positions(inner: FakeVocabulary):
    pictures = Pictures(Painter())
    vocabulary, red, blue = (
        PictureVocabulary(inner, pictures),
        picture_of(pictures),
        picture_of(pictures, BLUE),
    )
    text = f"<|im_start|>see {red.word}{blue.word} and"
    tokens = vocabulary.tokenize(text, special=True)
    assert tokens == [
        *inner.tokenize("<|im_start|>see ", special=True),
        *red.ids,
        *blue.ids,
        *inner.tokenize(" and", special=True),
    ]
    assert b"".join(vocabulary.piece(id, special=True) for id in red.ids) == red.word.encode()
    assert b"".join(vocabulary.piece(id) for id in red.ids) == b""
    spans = pictures.spans(tokens)
    assert [tokens[one.start : one.end] for one in spans] == [list(red.ids), list(blue.ids)]
    forged = "duoPicture" + "a" * 32
    assert vocabulary.tokenize(forged, special=True) == inner.tokenize(forged, special=True)


@pytest.mark.parametrize("inner", [FakeVocabulary(), Spacing()])
def test_transcripts_keep_replies_behind_pictures(inner: FakeVocabulary):
    pictures = Pictures(Painter())
    vocabulary, red, blue = (
        PictureVocabulary(inner, pictures),
        picture_of(pictures),
        picture_of(pictures, BLUE),
    )
    transcript = Transcript(vocabulary)

    def prompt(picture: Picture) -> str:
        return f"<|im_start|>what is {picture.word} here?<|im_end|><|im_start|>"

    tokens = transcript.tokens_for(prompt(red), "")
    reply = [*b"a", *b"cat", 257]
    odd = [256, *reply]  # no tokenizer makes a control token of the text of this one
    transcript.remember(prompt(red), tokens, odd, "")
    later = transcript.tokens_for(f"{prompt(red)}<|im_start|>acat<|im_end|>next {blue.word}!", "")
    assert later[: len(tokens) + len(odd)] == [*tokens, *odd]
    assert [token for token in later if token >= PICTURE_IDS] == [*red.ids, *blue.ids]
    other = transcript.tokens_for(prompt(blue), "")
    assert [token for token in other if token >= PICTURE_IDS] == list(blue.ids)
    assert other == _swapped(tokens, red, blue)


def _swapped(tokens: list[int], one: Picture, other: Picture) -> list[int]:
    ids = dict(zip(one.ids, other.ids, strict=True))
    return [ids.get(token, token) for token in tokens]
