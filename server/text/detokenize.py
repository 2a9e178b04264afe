"""Tokens to text, a few at a time, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Set

from server.llama.backend import Vocabulary


class Detokenizer:
    """One reply's text. Bytes of an unfinished UTF-8 character are held back until it is complete."""

    def __init__(self, vocabulary: Vocabulary, shown: Set[int] = frozenset()) -> None:
        """shown: control tokens that are text here."""
        self._vocabulary = vocabulary
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text this token completes; may be empty."""
        return self._decoder.decode(self._vocabulary.piece(token, special=token in self._shown))

    @property
    def unfinished(self) -> bool:
        """Whether bytes are held back."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """U+FFFD if a character was left unfinished, else nothing."""
        return self._decoder.decode(b"", final=True)


def control_tokens(vocabulary: Vocabulary, texts: Iterable[str]) -> frozenset[int]:
    """Those of the texts that are one control token each."""
    found = (vocabulary.tokenize(text, special=True) for text in texts)
    single = {tokens[0] for tokens in found if len(tokens) == 1}
    return frozenset(token for token in single - vocabulary.eog if not vocabulary.piece(token))
