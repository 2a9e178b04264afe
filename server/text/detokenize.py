"""Convert tokens to text in whole characters, and tell which tokens a stretch of text is made of."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Set
from typing import NamedTuple

from server.llama.backend import Vocabulary


class Detokenizer:
    """Text of one reply. Holds back the bytes of an unfinished UTF-8 character."""

    def __init__(
        self, vocabulary: Vocabulary, shown: Set[int] = frozenset(), *, begins: bool = False
    ) -> None:
        """Begin a reply.

        Args:
            vocabulary: Of the tokens.
            shown: Control tokens whose text is part of the reply.
            begins: A message begins here, so a space that the tokenizer adds before a text is dropped.
        """
        self._vocabulary = vocabulary
        self._shown = shown
        self._n_added = int(begins and adds_space(vocabulary))  # bytes, not seen yet
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Return the text that this token completes, perhaps ""."""
        data = self._vocabulary.piece(token, special=token in self._shown)
        if self._n_added and data:
            data, self._n_added = data.removeprefix(b" "), 0
        return self._decoder.decode(data)

    @property
    def unfinished(self) -> bool:
        """True while bytes of an incomplete character are held back."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """Return U+FFFD for an unfinished character, else ""."""
        return self._decoder.decode(b"", final=True)


def adds_space(vocabulary: Vocabulary) -> bool:
    """Return True if the tokenizer adds a space before texts, as SentencePiece does."""
    tokens = vocabulary.tokenize("a", special=False)
    return b"".join([vocabulary.piece(token, special=True) for token in tokens]) == b" a"


def spelled(vocabulary: Vocabulary, tokens: Iterable[int | None]) -> str:
    """Return the text of tokens, control tokens written out; U+FFFD for invalid bytes, "" for None."""
    pieces = (vocabulary.piece(token, special=True) for token in tokens if token is not None)
    return b"".join(pieces).decode(errors="replace")


class Span(NamedTuple):
    """Characters that a token contributes to, including an unfinished one at either end."""

    position: int
    start: int
    end: int


class Alignment:
    """Pair tokens, by their position in the reply, with their characters.

    A token that ends within a character counts as part of that character's text: it is released once the
    whole character has been sent.
    """

    def __init__(self) -> None:
        self._held: deque[Span] = deque()
        self._n_made = 0

    def add(self, position: int, text: str, *, unfinished: bool) -> None:
        """Add a token.

        Args:
            position: Of the token in the reply.
            text: The text that it completes.
            unfinished: The token ends within a character, which is not in `text`.
        """
        start = self._n_made
        self._n_made += len(text)
        self._held.append(Span(position, start, self._n_made + unfinished))

    def released(self, n_sent: int, *, cut: bool = False) -> list[Span]:
        """Return the tokens, not returned before, that are complete in the first n_sent characters.

        If the text was cut off there, also those that are partly in it; the others are dropped.
        """
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
