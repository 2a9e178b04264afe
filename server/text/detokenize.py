"""Tokens to text, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Set

from server.llama.backend import Vocabulary


class Detokenizer:
    """The text of one reply. Holds back the bytes of an unfinished UTF-8 character."""

    def __init__(self, vocabulary: Vocabulary, shown: Set[int] = frozenset()) -> None:
        """shown: control tokens whose text counts."""
        self._vocabulary = vocabulary
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that this token completes, perhaps ""."""
        return self._decoder.decode(self._vocabulary.piece(token, special=token in self._shown))

    @property
    def unfinished(self) -> bool:
        """Whether bytes are held back."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """U+FFFD for an unfinished character, else ""."""
        return self._decoder.decode(b"", final=True)


def control_tokens(vocabulary: Vocabulary, texts: Iterable[str]) -> frozenset[int]:
    """The control tokens among these texts."""
    found = (vocabulary.tokenize(text, special=True) for text in texts)
    single = {tokens[0] for tokens in found if len(tokens) == 1}
    return frozenset(token for token in single - vocabulary.eog if not vocabulary.piece(token))
