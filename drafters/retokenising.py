"""Text between two vocabularies: one's token ids to the other's, and guesses back. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drafters.guessing import DraftGuess
from server.llama.backend import Vocabulary

REDONE = 32  # bytes before the end of a text that are tokenised again when it grows, at least


class Growing:
    """A text that grows, as tokens of one vocabulary. Only its end is tokenised again."""

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab
        self._done: list[int] = []  # tokens of the part that does not change any more,
        self._rest: bytes = b""  # and the text after it
        self.unfinished: bytes = b""  # bytes at the very end that begin a character

    def extend(self, data: bytes) -> list[int]:
        """All tokens, with this text added. Bytes at the end that are no whole character are left out; others
        that are not UTF-8 become replacement characters."""
        data = self._rest + self.unfinished + data
        whole = len(data) - _n_unfinished(data)
        self._rest, self.unfinished = data[:whole], data[whole:]
        rest = self._tokens(self._rest)
        tokens = [*self._start, *self._done, *rest]
        self._settle(rest)
        return tokens

    @property
    def _start(self) -> list[int]:
        bos = self._vocab.bos
        return [bos] if self._vocab.add_bos and bos is not None else []

    def _tokens(self, data: bytes, *, follows: bool = False) -> list[int]:
        return tokens_of(self._vocab, data.decode(errors="replace"), follows=follows or bool(self._done))

    def _settle(self, rest: list[int]) -> None:
        """Words begin with their space in most vocabularies: cut before one, if that cuts no token."""
        cut = self._rest.rfind(b" ", 1, max(1, len(self._rest) - REDONE))
        if cut < 0:
            return
        head = self._tokens(self._rest[:cut])
        if head + self._tokens(self._rest[cut:], follows=True) == rest:
            self._done += head
            self._rest = self._rest[cut:]


def tokens_of(vocab: Vocabulary, text: str, *, follows: bool) -> list[int]:
    """Tokens of a text, control tokens included. follows: other text stands before it, so a space that the
    vocabulary puts before every text is taken away again."""
    tokens = vocab.tokenize(text, special=True) if text else []
    if follows and tokens and text_of(vocab, tokens) == b" " + text.encode():
        first = vocab.piece(tokens[0], special=True)
        if first == b" ":
            return tokens[1:]
    return tokens


def text_of(vocab: Vocabulary, tokens: Sequence[int]) -> bytes:
    return b"".join(vocab.piece(token, special=True) for token in tokens)


def translated(
    guesses: Sequence[DraftGuess], own: Vocabulary, target: Vocabulary, *, more: bool
) -> list[DraftGuess]:
    """Guesses in the target's tokens for what follows the last character. A token counts with the probability
    that all own tokens which its text needs are right, given those before it.

    more: others may still follow, so the last token is left out, which more text might change. The end of a
    text becomes the target's; bytes that are no whole character end the guess.
    """
    pieces = [own.piece(guess.token) for guess in guesses]
    n_spoken = pieces.index(b"") if b"" in pieces else len(pieces)  # control tokens are nothing to say
    ended = n_spoken < len(guesses) and guesses[n_spoken].token in own.eog
    text = _decodable(b"".join(pieces[:n_spoken]))
    tokens = tokens_of(target, text, follows=True)
    if text_of(target, tokens) != text.encode():
        return []
    if more and not ended:
        tokens = tokens[:-1]
    result: list[DraftGuess] = []
    at = position = used = 0  # bytes told; own tokens needed for them, and how many bytes these have
    for token in tokens:
        at += len(target.piece(token, special=True))
        first = used
        while position < at:
            position += len(pieces[used])
            used += 1
        result.append(DraftGuess(token, math.prod(guess.confidence for guess in guesses[first:used])))
    if ended and used == n_spoken and target.eos is not None:
        result.append(DraftGuess(target.eos, guesses[n_spoken].confidence))
    return result


def _decodable(data: bytes) -> str:
    """The text up to the first byte that is not part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


def _n_unfinished(data: bytes) -> int:
    """How many bytes at the end begin a character that is not complete."""
    for n in range(1, min(4, len(data)) + 1):
        byte = data[-n]
        if byte & 0xC0 == 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return n if length > n else 0
        if byte < 0x80:
            return 0
    return 0
