"""Translate token ids of one vocabulary to another, and guesses back. Pure."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import NamedTuple

from server.llama.backend import Vocabulary
from server.sampling.draft_token import DraftGuess

# Characters at the end of a text that are tokenised again when it grows: longer than most tokens. Twice: each
# commit tokenises up to 32 more; half: a long token leaves more of the text unsettled.
REDONE = 32


class Growing:
    """A growing text in tokens of one vocabulary. Only its end is tokenised again."""

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab
        self._start = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
        self._done: list[int] = []  # tokens of the part that no longer changes
        self._rest = ""  # text after that part
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def unfinished(self) -> bool:
        """True if the last bytes are the beginning of an unfinished character."""
        return bool(self._decoder.getstate()[0])

    def extend(self, data: bytes) -> list[int]:
        """Append bytes, and return all tokens of the text.

        An unfinished character at the end is left out; other bytes that are not UTF-8 become replacement
        characters.
        """
        self._rest += self._decoder.decode(data)
        rest = self._tokens_of_rest(self._rest)
        tokens = [*self._start, *self._done, *rest]
        self._finalise_head(rest)
        return tokens

    def _tokens_of_rest(self, text: str, *, follows: bool = False) -> list[int]:
        return tokens_of(self._vocab, text, follows=follows or bool(self._done))

    def _finalise_head(self, rest: list[int]) -> None:
        """Make all tokens final up to the last space that is at least REDONE characters before the end.

        Later calls of extend() tokenise only the text from this space on. A space is used because most
        vocabularies begin words with one. Does nothing if a cut at this space would change the tokens.

        rest: The tokens that are not final yet.
        """
        cut = self._rest.rfind(" ", 1, max(1, len(self._rest) - REDONE))
        if cut < 0:
            return
        head = self._tokens_of_rest(self._rest[:cut])
        if head + self._tokens_of_rest(self._rest[cut:], follows=True) == rest:
            self._done += head
            self._rest = self._rest[cut:]


def tokens_of(vocab: Vocabulary, text: str, *, follows: bool) -> list[int]:
    """Return the tokens of a text, control tokens included.

    If other text precedes it (`follows`), the space that some vocabularies put before every text is removed.
    """
    tokens = vocab.tokenize(text, special=True) if text else []
    if follows and tokens and text_of(vocab, tokens) == b" " + text.encode():
        first = vocab.piece(tokens[0], special=True)
        if first == b" ":
            return tokens[1:]
    return tokens


def text_of(vocab: Vocabulary, tokens: Sequence[int]) -> bytes:
    return b"".join(vocab.piece(token, special=True) for token in tokens)


class Piece(NamedTuple):
    """Some bytes of a guessed text, and the probability that they are right, given all bytes before."""

    data: bytes
    confidence: float


def translated(
    guesses: Sequence[DraftGuess], own: Vocabulary, target: Vocabulary, *, more: bool
) -> list[DraftGuess]:
    """Translate guesses to the target's tokens.

    The guesses end before the first control token, which has no text. If it is an end-of-generation token,
    the target's EOS is added.

    Args:
        guesses: The guesses, in the drafter's own tokens.
        own: The drafter's vocabulary.
        target: The target's vocabulary.
        more: True if more guesses may follow. Then the last token is left out, unless EOS follows.
    """
    pieces = [Piece(own.piece(guess.token), guess.confidence) for guess in guesses]
    n_spoken = next((i for i, piece in enumerate(pieces) if not piece.data), len(pieces))
    ended = n_spoken < len(guesses) and guesses[n_spoken].token in own.eog
    end = guesses[n_spoken].confidence if ended else None
    return retokenised(pieces[:n_spoken], target, end=end, more=more)


def retokenised(
    pieces: Sequence[Piece], target: Vocabulary, *, end: float | None, more: bool
) -> list[DraftGuess]:
    """Return guesses in tokens of `target` for a guessed text.

    A token's confidence is the probability that all pieces of its text are right, given the pieces before.
    The guesses end before bytes that are not a whole character.

    Args:
        pieces: The text.
        target: The vocabulary.
        end: The probability that the text ends here; None if it does not.
        more: True if more text may follow. Then the last token, which may still change, is left out.
    """
    text = _decodable_part(b"".join(piece.data for piece in pieces))
    tokens = tokens_of(target, text, follows=True)
    if text_of(target, tokens) != text.encode():
        return []
    if more and end is None:
        tokens = tokens[:-1]
    result: list[DraftGuess] = []
    at = position = used = 0  # bytes of the tokens so far; bytes of the pieces used; number of pieces used
    for token in tokens:
        at += len(target.piece(token, special=True))
        first = used
        while position < at:
            position += len(pieces[used].data)
            used += 1
        result.append(DraftGuess(token, math.prod(piece.confidence for piece in pieces[first:used])))
    if end is not None and used == len(pieces) and target.eos is not None:
        result.append(DraftGuess(target.eos, end))
    return result


def _decodable_part(data: bytes) -> str:
    """Return the text before the first byte that is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()
