"""Vocabularies in which a text has many segmentations, and real ones without their weights."""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import gguf

from server.llama.backend import Vocabulary
from server.llama.llamacpp import C, LlamaVocabulary
from tests.fake_backend import FakeVocabulary

_CONTROLS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
)
_MERGED = (
    "th he in er an re on at en nd the and ing ion \n\n ␣a ␣t ␣th ␣the ␣s ␣w ll lo hel hello wor "
    "world ␣world as assistant us user sy sys system ␣␣ ␣␣␣ aa aaa aaaa ab ba aba abab .\n ?! é ü 😀"
)


class ToyBpe:
    """A byte-pair vocabulary: merges by rank within pre-tokens, control tokens cut out first."""

    def __init__(self) -> None:
        words = [word.replace("␣", " ") for word in _MERGED.split(" ")]
        merged = sorted({word.encode() for word in words}, key=lambda piece: (len(piece), piece))
        self.pieces = [*(bytes([byte]) for byte in range(256)), *merged]
        self._ranks = {piece: rank for rank, piece in enumerate(self.pieces)}
        self._controls = {text: len(self.pieces) + i for i, text in enumerate(_CONTROLS)}
        self._written = {token: text.encode() for text, token in self._controls.items()}
        self._cut = re.compile("(" + "|".join(map(re.escape, _CONTROLS)) + ")")
        self.size = len(self.pieces) + len(_CONTROLS)
        self.longest = max(map(len, [*self.pieces, *_CONTROLS]))
        self.bos: int | None = None
        self.eos: int | None = self._controls["<|im_end|>"]
        self.eog = frozenset({self.eos, self._controls["<|eot_id|>"]})
        self.add_bos = False
        self.fim = None
        self.added = self._controls
        self.n_tokenized = 0  # characters so far

    def control(self, text: str) -> int:
        return self._controls[text]

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        self.n_tokenized += len(text)
        tokens: list[int] = []
        for part in self._cut.split(text) if special else [text]:
            if special and part in self._controls:
                tokens.append(self._controls[part])
            else:
                for word in re.findall(r" ?\w+|\s+(?!\S)|\s+| ?[^\w\s]+", part):
                    tokens += self._merge(word.encode())
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < len(self.pieces):
            return self.pieces[token]
        return self._written[token] if special else b""

    def _merge(self, word: bytes) -> list[int]:
        """Merge the lowest rank first, as byte pair encoding does."""
        parts = [bytes([byte]) for byte in word]
        while True:
            ranks = [self._ranks.get(a + b, self.size) for a, b in pairwise(parts)]
            if not ranks or (best := min(ranks)) == self.size:
                return [self._ranks[part] for part in parts]
            at = ranks.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]


class Segmenter:
    """Cuts texts as a model may: into any token that continues the text, except control tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens: dict[bytes, int] = {}
        for token in range(vocabulary.size):
            if piece := vocabulary.piece(token):
                self._tokens.setdefault(piece, token)
        self._longest = min(16, max(map(len, self._tokens)))

    def cut(self, text: str, randomness: random.Random) -> list[int]:
        data, tokens = text.encode(), list[int]()
        at = 0
        while at < len(data):
            ends = range(at + 1, min(at + self._longest, len(data)) + 1)
            fitting = [end for end in ends if data[at:end] in self._tokens]
            end = randomness.choice(fitting)
            tokens.append(self._tokens[data[at:end]])
            at = end
        return tokens


@contextmanager
def loaded(path: Path) -> Generator[LlamaVocabulary]:
    """Yield the vocabulary of a GGUF file, by llama.cpp."""
    C.llama_backend_init()
    params = C.llama_model_default_params()
    params.vocab_only = True
    model = C.llama_model_load_from_file(str(path).encode(), params)
    assert model
    try:
        yield LlamaVocabulary(model)
    finally:
        C.llama_model_free(model)


def write_sentencepiece(path: Path) -> None:
    """Write a SentencePiece vocabulary that adds a space in front, as Llama 2's does.

    Its control tokens swallow the white space after them, as llama.cpp does for models named like Phi-3.
    """
    words = "▁ ▁▁ h e l o w r d s t i n ▁h ▁w he ll lo hello ▁hello wor ld world ▁world ▁hel th is this ▁this"
    texts = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"]
    kind = gguf.TokenType
    kinds = [kind.UNKNOWN, *[kind.CONTROL] * 6]
    texts += [f"<0x{byte:02X}>" for byte in range(256)]
    kinds += [kind.BYTE] * 256
    texts += words.split(" ")
    kinds += [kind.NORMAL] * len(words.split(" "))
    writer = gguf.GGUFWriter(path, "phi3")
    writer.add_name("Phi-3 toy")
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    writer.add_token_scores([float(len(text)) for text in texts])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_byte_level(path: Path, tokens: Sequence[tuple[str, gguf.TokenType]], *, eos: str) -> None:
    """Write a vocabulary of all bytes in GPT-2's spelling, without merges, followed by these tokens."""
    spelled = [chr(byte) if _is_printed(byte) else "" for byte in range(256)]
    for n, byte in enumerate(byte for byte in range(256) if not spelled[byte]):
        spelled[byte] = chr(256 + n)
    texts = [*spelled, *(text for text, _ in tokens)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [kind for _, kind in tokens])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(texts.index(eos))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _is_printed(byte: int) -> bool:
    """Return True if GPT-2 spells a byte by its own character."""
    return 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174


class MarkedVocabulary(FakeVocabulary):
    """The toy vocabulary with control tokens around thoughts and calls."""

    MARKS = (
        "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>",
        "<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|tool_call>", "<tool_call|>", '<|"|>',
        "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
        "<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_start|>", "<|START_ACTION|>",
        "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>", "<arg_key>", "</arg_key>", "<arg_value>",
        "</arg_value>", "]<]minimax[>[", "<|open|>", "<|close|>", "<|sep|>",
    )  # fmt: skip
    size = FakeVocabulary.size + len(MARKS)
    longest = max(FakeVocabulary.longest, *map(len, MARKS))
    added: Mapping[str, int] = MappingProxyType(
        {**FakeVocabulary.added, **{mark: FakeVocabulary.size + i for i, mark in enumerate(MARKS)}}
    )

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        marks = "|".join(map(re.escape, self.MARKS))
        parts = re.split(f"({marks})", text) if special else [text]
        tokens: list[int] = []
        for part in parts:
            marked = special and part in self.MARKS
            tokens += [self.token(part)] if marked else super().tokenize(part, special=special)
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < FakeVocabulary.size:
            return super().piece(token, special=special)
        return self.MARKS[token - FakeVocabulary.size].encode() if special else b""

    def token(self, mark: str) -> int:
        return FakeVocabulary.size + self.MARKS.index(mark)
