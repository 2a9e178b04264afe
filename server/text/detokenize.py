"""Convert tokens to text in whole characters, and find the tokens that make up a part of the text."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Set
from typing import NamedTuple

from server.llama.backend import Vocabulary


class Detokenizer:
    """Converts the tokens of one reply to text. Holds back the bytes of an unfinished UTF-8 character."""

    def __init__(
        self, vocabulary: Vocabulary, shown: Set[int] = frozenset(), *, begins: bool = False
    ) -> None:
        """Begin a reply.

        Args:
            vocabulary: Vocabulary of the tokens.
            shown: Control tokens whose text is part of the reply.
            begins: True if a message begins here: a space that the tokenizer adds before texts is dropped.
        """
        self._vocabulary = vocabulary
        self._shown = shown
        self._n_added = int(begins and adds_space(vocabulary))  # bytes of added space still to be dropped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Return the whole characters that this token completes, "" if none."""
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
    """Return the joined texts of tokens, control tokens included; U+FFFD for invalid bytes, "" for None."""
    pieces = (vocabulary.piece(token, special=True) for token in tokens if token is not None)
    return b"".join(pieces).decode(errors="replace")


class Span(NamedTuple):
    """The characters `start` to `end` of a reply, spelled by the reply's token number `position`.

    A character that two tokens share belongs to both.
    """

    position: int
    start: int
    end: int


class Alignment:
    """Finds which tokens are complete in the text that has been sent.

    A token that ends within a character is released once the whole character has been sent.
    """

    def __init__(self) -> None:
        self._held: deque[Span] = deque()
        self._n_made = 0

    def add(self, position: int, text: str, *, unfinished: bool) -> None:
        """Add a token.

        Args:
            position: The token's position in the reply.
            text: The text that it completes.
            unfinished: True if the token ends within a character, which is then not in `text`.
        """
        start = self._n_made
        self._n_made += len(text)
        self._held.append(Span(position, start, self._n_made + unfinished))

    def released(self, n_sent: int, *, cut: bool = False) -> list[Span]:
        """Return the tokens that have become complete in the first n_sent characters since the last call.

        If `cut`, the text ends after n_sent characters: also return tokens that begin before its end, and
        drop all others.
        """
        spans: list[Span] = []
        while self._held and (self._held[0].end <= n_sent or (cut and self._held[0].start < n_sent)):
            spans.append(self._held.popleft())
        if cut:
            self._held.clear()
        return spans


def marker_tokens(vocabulary: Vocabulary, texts: Iterable[str]) -> dict[str, int]:
    """Return the ids, by text, of the tokens added to the vocabulary that have one of these texts.

    The tokenizer always reads such a text as its token. Tokens that end a generation are left out.
    """
    found = ((text, vocabulary.added.get(text)) for text in texts)
    return {text: token for text, token in found if token is not None and token not in vocabulary.eog}
