"""Tokens to text, never half a character, and which tokens the text that has been sent is made of."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Set
from typing import NamedTuple

from server.llama.backend import Vocabulary


class Detokenizer:
    """The text of one reply. Holds back the bytes of an unfinished UTF-8 character."""

    def __init__(
        self, vocabulary: Vocabulary, shown: Set[int] = frozenset(), *, begins: bool = False
    ) -> None:
        """shown: control tokens whose text counts. begins: a message begins here, so that a space which the
        tokenizer adds before a text is none of it."""
        self._vocabulary = vocabulary
        self._shown = shown
        self._n_added = int(begins and adds_space(vocabulary))  # bytes, not seen yet
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that this token completes, perhaps ""."""
        data = self._vocabulary.piece(token, special=token in self._shown)
        if self._n_added and data:
            data, self._n_added = data.removeprefix(b" "), 0
        return self._decoder.decode(data)

    @property
    def unfinished(self) -> bool:
        """Whether bytes are held back."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """U+FFFD for an unfinished character, else ""."""
        return self._decoder.decode(b"", final=True)


def adds_space(vocabulary: Vocabulary) -> bool:
    """Whether the tokenizer adds a space before a text and after control tokens, as SentencePiece does."""
    tokens = vocabulary.tokenize("a", special=False)
    return b"".join([vocabulary.piece(token, special=True) for token in tokens]) == b" a"


def spelled(vocabulary: Vocabulary, tokens: Iterable[int | None]) -> str:
    """The text of tokens, control tokens written out, U+FFFD for bytes that are no text, "" for None."""
    pieces = (vocabulary.piece(token, special=True) for token in tokens if token is not None)
    return b"".join(pieces).decode(errors="replace")


class Span(NamedTuple):
    """A token's characters: those it contributes to, an unfinished one at either end included."""

    position: int
    start: int
    end: int


class Alignment:
    """Releases tokens, by their position in the reply, with the text they are made of.

    A token whose last bytes begin a character belongs to the text that this character is part of: it is
    released once the whole character has been sent.
    """

    def __init__(self) -> None:
        self._held: deque[Span] = deque()
        self._n_made = 0

    def add(self, position: int, text: str, *, unfinished: bool) -> None:
        """The token completed this text; unfinished: its last bytes begin a character not yet in it."""
        start = self._n_made
        self._n_made += len(text)
        self._held.append(Span(position, start, self._n_made + unfinished))

    def released(self, n_sent: int, *, cut: bool = False) -> list[Span]:
        """The tokens not released before that are complete in the first n_sent characters, or, where the
        text has been cut off there, have a part in them: then those wholly beyond are dropped."""
        spans: list[Span] = []
        while self._held and (self._held[0].end <= n_sent or (cut and self._held[0].start < n_sent)):
            spans.append(self._held.popleft())
        if cut:
            self._held.clear()
        return spans


def mark_tokens(vocabulary: Vocabulary, texts: Iterable[str]) -> dict[str, int]:
    """Return the ids of those texts that are tokens of their own, unless they end a generation.

    In a vocabulary that has such a token no other token stands for its text.
    """
    found = ((text, vocabulary.added.get(text)) for text in texts)
    return {text: token for text, token in found if token is not None and token not in vocabulary.eog}
