"""A lead of another vocabulary: its tokens and the drafter's say the same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafters.drafter_settings import BUNDLED_MODEL
from drafters.retokenising import REDONE, Growing, text_of, tokens_of, translated
from drafters.translating import TranslatingDrafter
from server.drafting.model_drafter import ModelDrafter
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.sampling.draft_token import DraftGuess
from server.speculation.wire.messages import Close
from tests.drafters.scene import ENDLESS, PROMPT, Scene, commit, open_, told
from tests.fake_backend import IM_END, FakeBackend, FakeModel, FakeVocabulary

BYTES = FakeVocabulary()
END = 7


class Pieces:
    """A Vocabulary of longer pieces, of which the longest that fits is taken."""

    bos = None
    eos = END
    eog = frozenset({END})
    add_bos = False
    fim = None
    longest = 16

    def __init__(self, words: Sequence[bytes] = (), *, space_first: bool = False) -> None:
        """Put a space before every text if space_first."""
        letters = [bytes([i]) for i in range(256)]
        pairs = [bytes([a, b]) for a in b" abcdefghijklmnopqrstuvwxyz" for b in b"aeiou .,"]
        self._pieces = [*[b""] * 8, *letters, *pairs, *words]
        self._ids = {piece: i for i, piece in enumerate(self._pieces) if piece}
        self._longest = max(map(len, self._pieces))
        self._space_first = space_first
        self.size = len(self._pieces)
        self.added: Mapping[str, int] = {}  # it has no control tokens

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        data, tokens, at = (b" " * self._space_first) + text.encode(), list[int](), 0
        while at < len(data):
            piece = next(
                data[at : at + n] for n in range(self._longest, 0, -1) if data[at : at + n] in self._ids
            )
            tokens.append(self._ids[piece])
            at += len(piece)
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token == END and special:
            return b"<|im_end|>"
        return self._pieces[token]


TARGET = Pieces([b" prompt", b"something", b" so", b" to evaluate"])


def scene_of(backend: FakeBackend | None = None) -> Scene:
    backend = backend or FakeBackend(ENDLESS)
    return Scene(backend, drafter=TranslatingDrafter(ModelDrafter(backend), BYTES, TARGET))


def said(tokens: Sequence[int]) -> bytes:
    return text_of(TARGET, tokens)


START = tuple(TARGET.tokenize(bytes(PROMPT).decode(), special=True))


def test_guesses_are_of_the_same_text():
    scene = scene_of()
    scene.send(open_(START, max_ahead=8))
    text = said(scene.drafted())
    assert len(text) >= 4
    assert text == bytes(told(len(text)))
    assert max(scene.drafted()) < TARGET.size


def test_commits_are_translated():
    scene = scene_of()
    scene.send(open_(START, max_ahead=8))
    tokens = TARGET.tokenize("something else, to evaluate", special=True)
    n_drafts = len(scene.lead.drafts())
    scene.send(commit(*tokens, prompt=START))
    new = scene.lead.drafts()[n_drafts:]
    assert new[0].base == len(START) + len(tokens)
    text = said([token for draft in new for token in draft.tokens])
    assert text == bytes(told(len(text), (*PROMPT, *b"something else, to evaluate")))


def test_guesses_that_come_true_are_kept():
    scene = scene_of()
    scene.send(open_(START, max_ahead=8))
    guesses = scene.drafted()
    before = sum(scene.backend.widths)
    scene.send(commit(*guesses[:2], prompt=START))
    assert said(scene.drafted()) == bytes(told(len(said(scene.drafted()))))
    assert sum(scene.backend.widths) - before <= 16, "nothing is evaluated again"


def test_turns_keep_the_cache():
    scene = scene_of()
    scene.send(open_(START, max_ahead=4))
    scene.send(Close("lead", 1, True))
    n_steps = len(scene.backend.widths)
    scene.send(open_((*START, *TARGET.tokenize("and so on", special=True)), session=2, max_ahead=4))
    assert scene.backend.widths[n_steps] <= 20
    assert scene.drafted(2)


def test_half_a_character_waits_for_the_rest():
    scene = scene_of()
    first, second = (TARGET.tokenize("é", special=True)[i] for i in range(2))
    scene.send(open_((*START, first), max_ahead=4))
    assert scene.drafted() == []
    scene.send(commit(second, prompt=(*START, first)))
    text = said(scene.drafted())
    assert text
    assert text == bytes(told(len(text), (*PROMPT, *"é".encode())))


def test_tokens_outside_the_vocabulary_are_refused(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "duo.drafter")
    scene = scene_of()
    scene.send(open_((*START, TARGET.size)))
    assert scene.drafted() == []
    assert "outside its vocabulary" in caplog.text
    assert "decode of drafts failed" not in caplog.text


def test_text_end_is_the_leads():
    scene = scene_of(FakeBackend(FakeModel(eog_rate=1.0)))
    scene.send(open_(START))
    assert scene.drafted() == [END]


# -- there and back


def guesses_of(vocab: Pieces | FakeVocabulary, text: str) -> list[DraftGuess]:
    return [DraftGuess(token, 0.5) for token in vocab.tokenize(text, special=True)]


@given(st.text("abc e.,é", max_size=30), st.booleans())
def test_guess_means_equal_text(text: str, more: bool):
    for own, target in ((BYTES, TARGET), (TARGET, BYTES)):
        tokens = [guess.token for guess in translated(guesses_of(own, text), own, target, more=more)]
        assert text.encode().startswith(text_of(target, tokens))
        assert tokens == target.tokenize(text, special=True)[: len(tokens)]
        assert more or text_of(target, tokens) == text.encode()


def test_confidence_covers_own_tokens():
    [word] = translated(guesses_of(BYTES, " so"), BYTES, TARGET, more=False)
    assert word.confidence == 0.5**3
    letters = translated(guesses_of(TARGET, " so"), TARGET, BYTES, more=False)
    assert [guess.confidence for guess in letters] == [0.5, 1.0, 1.0]


def test_growing_token_is_held_back():
    assert translated(guesses_of(BYTES, " so"), BYTES, TARGET, more=True) == []


def test_non_text_bytes_end_guess():
    guesses = [DraftGuess(token, 0.9) for token in (*b"ab", 0xFF, *b"cd")]
    assert [g.token for g in translated(guesses, BYTES, TARGET, more=False)] == TARGET.tokenize(
        "ab", special=True
    )
    ended = [*guesses_of(BYTES, "ab"), DraftGuess(IM_END, 0.9)]
    assert translated(ended, BYTES, TARGET, more=False)[-1] == DraftGuess(END, 0.9)


def test_added_space_is_removed():
    vocab = Pieces(space_first=True)
    assert text_of(vocab, tokens_of(vocab, "xyz", follows=False)) == b" xyz"
    assert text_of(vocab, tokens_of(vocab, "xyz", follows=True)) == b"xyz"


@given(st.lists(st.text("ab e.é ", max_size=2 * REDONE), max_size=8), st.data())
def test_a_text_in_portions_is_the_text(portions: list[str], data: st.DataObject):
    whole = "".join(portions).encode()
    growing, at, tokens = Growing(TARGET), 0, list[int]()
    while at < len(whole):
        n = data.draw(st.integers(1, 50))
        tokens = growing.extend(whole[at : at + n])
        at += n
    assert tokens == TARGET.tokenize(whole.decode(), special=True)
    assert not growing.unfinished


@pytest.mark.model
def test_real_vocabulary_translates_to_itself(tmp_path: Path):
    options = LlamaOptions(BUNDLED_MODEL, n_cells=256, n_seqs=1)
    with closing(LlamaBackend(options)) as backend:
        vocab = backend.vocab
        text = "Once upon a time, there was a café. It was 3 o'clock, and\n\nnobody knew why."
        tokens = vocab.tokenize(text, special=True)
        guesses = [DraftGuess(token, 0.9) for token in tokens]
        assert [guess.token for guess in translated(guesses, vocab, vocab, more=False)] == tokens
        growing, grown = Growing(vocab), list[int]()
        for byte in (text * 4).encode():
            grown = growing.extend(bytes([byte]))
        start = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
        assert grown == [*start, *vocab.tokenize(text * 4, special=True)]
