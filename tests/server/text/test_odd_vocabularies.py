"""What vocabularies of models have beside text: several ends, a BOS that templates write too, and holes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import pytest

from server.api.history import after_bos
from server.grammar.grammar_constraint import compile_gbnf
from server.llama.backend import Vocabulary
from server.text.detokenize import Detokenizer
from server.text.offsets import OffsetMapper
from server.text.template import ChatTemplate
from server.text.transcript import Transcript
from tests.server.text.vocabularies import loaded, write_byte_level, write_sentencepiece

KIND = gguf.TokenType


def ids(vocabulary: Vocabulary, texts: Sequence[str]) -> set[int]:
    found = [vocabulary.tokenize(text, special=True) for text in texts]
    assert all(len(one) == 1 for one in found)
    return {one[0] for one in found}


@pytest.mark.parametrize(
    ("ends", "others"),
    [
        (("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"), ("<|start_header_id|>",)),
        (("<eos>", "<end_of_turn>"), ("<start_of_turn>",)),
        (("<eos>", "<turn|>", "<|tool_response>"), ("<|turn>",)),
        (("<|return|>", "<|call|>", "<|endoftext|>"), ("<|end|>", "<|channel|>", "<|message|>")),
        (("<|endoftext|>", "<|im_end|>"), ("<|im_start|>",)),
    ],
    ids=lambda texts: texts[0],
)
@pytest.mark.parametrize("kind", [KIND.CONTROL, KIND.NORMAL])
def test_every_end_token_ends_reply(
    tmp_path: Path, ends: tuple[str, ...], others: tuple[str, ...], kind: KIND
):
    """The file names one of them, and may call the others text."""
    tokens = [(ends[0], KIND.CONTROL), *((end, kind) for end in ends[1:])]
    path = tmp_path / "vocabulary.gguf"
    write_byte_level(path, [*tokens, *((other, KIND.CONTROL) for other in others)], eos=ends[0])
    with loaded(path) as vocabulary:
        assert vocabulary.eog == ids(vocabulary, ends)
        assert not vocabulary.eog & ids(vocabulary, others)
        assert not any(map(vocabulary.piece, vocabulary.eog))
        constraint = compile_gbnf(vocabulary, 'root ::= "ab"')()
        for token in vocabulary.tokenize("ab", special=False):
            constraint.accept(token)
        assert set(constraint.mask().nonzero()[0].tolist()) == vocabulary.eog


@pytest.mark.parametrize("written", ["{{ bos_token }}", ""])
def test_prompt_has_one_bos(tmp_path: Path, written: str):
    path = tmp_path / "vocabulary.gguf"
    write_sentencepiece(path)
    turns = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
    template = ChatTemplate(written + turns, bos="<s>")
    with loaded(path) as vocabulary:
        transcript = Transcript(vocabulary)
        messages, held = [{"role": "user", "content": "hello"}], list[int]()
        for _ in range(3):
            text = template.render(messages)
            prompt = after_bos(vocabulary, transcript.tokens_for(text, ""))
            assert prompt[: len(held)] == held
            assert [at for at, token in enumerate(prompt) if token == vocabulary.bos] == [0]
            reply = [*vocabulary.tokenize("hello world", special=False), *ids(vocabulary, ["<|end|>"])]
            transcript.remember(text, prompt, reply, "")
            held = [*prompt, *reply]
            messages += [
                {"role": "assistant", "content": "hello world"},
                {"role": "user", "content": "this"},
            ]


def test_ids_without_text_are_harmless(tmp_path: Path):
    """Some vocabularies are filled up to a round number."""
    path = tmp_path / "vocabulary.gguf"
    holes = [(f"[PAD{i}]", KIND.UNUSED) for i in range(30)] + [("", KIND.UNUSED)] * 2
    write_byte_level(path, [*holes[:10], ("<|im_end|>", KIND.CONTROL), *holes[10:]], eos="<|im_end|>")
    with loaded(path) as vocabulary:
        assert vocabulary.size == 256 + 33
        empty = [token for token in range(256, vocabulary.size) if not vocabulary.piece(token, special=True)]
        assert len(empty) == 32
        text = "some text, [PAD3] and é<|im_end|>\n"
        tokens = vocabulary.tokenize(text, special=True)
        spelled = OffsetMapper(vocabulary).spelled(tokens)
        assert spelled == text.encode()
        assert not set(empty) & set(tokens)
        assert vocabulary.longest == len("<|im_end|>")
        detokenizer = Detokenizer(vocabulary)
        said = [tokens[0], empty[0], tokens[1], empty[-1], tokens[2]]
        assert "".join(map(detokenizer.feed, said)) == "som"
        mask = compile_gbnf(vocabulary, "root ::= [a-z]+")().mask()
        assert mask[tokens[0]]
        assert not mask[empty].any()
