"""The bundled model's tokenizer, called in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.llama import cuts
from server.llama.library import LoadedModel
from server.llama.llamacpp import LlamaVocabulary
from server.llama.options import Weights
from server.settings import BUNDLED_MODEL

pytestmark = pytest.mark.model

MARKS = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|fim_middle|>", "<|im", "_end|>"]


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[LlamaVocabulary]:
    with closing(LoadedModel(BUNDLED_MODEL, Weights(), vocab_only=True)) as model:
        yield LlamaVocabulary(model.handle)


@pytest.mark.parametrize("special", [True, False])
@given(parts=st.lists(st.sampled_from([*MARKS, " ", "\n", "two words", "é", "x", "  "]), max_size=40))
def test_pieces_tokenise_like_whole(vocabulary: LlamaVocabulary, special: bool, parts: list[str]):
    text = "".join(parts)
    whole = vocabulary.tokenize(text, special=special)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "PIECE", 1)
        assert vocabulary.tokenize(text, special=special) == whole


def test_no_piece_is_longer_than_the_longest(vocabulary: LlamaVocabulary):
    pieces = (vocabulary.piece(token, special=True) for token in range(vocabulary.size))
    assert vocabulary.longest == max(map(len, pieces))
