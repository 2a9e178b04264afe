"""Transcripts where the tokenizer adds spaces, and control tokens swallow what is beside them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.llama.backend import Vocabulary
from server.text.template import ChatTemplate
from server.text.transcript import Transcript
from tests.server.text.test_transcript import Conversation
from tests.server.text.vocabularies import Segmenter, loaded, write_sentencepiece

PHI = ChatTemplate(
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{{ '<|assistant|>\n' }}"
)
SPACED = ChatTemplate(
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }}<|end|>{% endfor %}<|assistant|>"
)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    path = tmp_path_factory.mktemp("vocabulary") / "phi-3.gguf"
    write_sentencepiece(path)
    with loaded(path) as vocabulary:
        yield vocabulary


def test_no_space_joins_messages(sentencepiece: Vocabulary):
    """Nor does a line break where the end of a turn swallows it. The BOS is not written out."""
    assert sentencepiece.add_bos
    assert sentencepiece.bos is not None
    (end,) = sentencepiece.tokenize("<|end|>", special=True)
    conversation = Conversation(sentencepiece, PHI, end)
    randomness, segmenter = random.Random(5), Segmenter(sentencepiece)
    held: list[int] = []
    for _ in range(10):
        prompt = conversation.ask("hello world")
        new = "<|end|>\n<|user|>\nhello world<|end|>\n<|assistant|>\n"
        rest = sentencepiece.tokenize(new, special=True)[1:]
        if held:
            assert prompt == held + rest
        conversation.prompt = [sentencepiece.bos, *prompt]  # as the server puts it in front
        conversation.reply(segmenter.cut(" hello this world", randomness))
        held = conversation.held[1:]


def test_reply_without_tokenizer_space_matches(sentencepiece: Vocabulary):
    """A client sees it without; a template may write one of its own."""
    (end,) = sentencepiece.tokenize("<|end|>", special=True)
    for template in (PHI, SPACED):
        conversation = Conversation(sentencepiece, template, end)
        randomness, segmenter = random.Random(6), Segmenter(sentencepiece)
        conversation.prompt = [sentencepiece.bos or 0, *conversation.ask("hello world")]
        for _ in range(5):
            reply = segmenter.cut(" hello this world", randomness)
            conversation.reply(reply, {"role": "assistant", "content": "hello this world"})
            held = conversation.held[1:]
            prompt = conversation.ask("hello world")
            assert prompt[: len(held)] == held
            conversation.prompt = [sentencepiece.bos or 0, *prompt]


@given(
    st.lists(st.lists(st.sampled_from(["<|end|>", "\n", " ", "hello", " wor", "ld", "<s>", "x"]), max_size=9))
)
def test_prompts_alone_change_no_tokens_of_sentencepiece(sentencepiece: Vocabulary, parts: list[list[str]]):
    transcript = Transcript(sentencepiece)
    texts = ["".join(words) for words in parts]
    begun = ["".join(words[: len(words) // 2 + 1]) + "hello" for words in parts]
    for text in (*texts, *begun, *(text + " x" for text in texts)):
        tokens = transcript.tokens_for(text, "")
        assert tokens == sentencepiece.tokenize(text, special=True)
        transcript.remember(text, tokens, (), "")
