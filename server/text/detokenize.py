"""Tokens to text, a few at a time, never half a character."""

from __future__ import annotations

import codecs

from server.llama.backend import Vocabulary


class Detokenizer:
    """One reply's text. Bytes of an unfinished UTF-8 character are held back until it is complete."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text this token completes; may be empty."""
        return self._decoder.decode(self._vocabulary.piece(token))

    @property
    def unfinished(self) -> bool:
        """Whether bytes are held back."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """U+FFFD if a character was left unfinished, else nothing."""
        return self._decoder.decode(b"", final=True)
