"""The offset mapping of a tokenised text: the byte at which each token ends.

Mostly the pieces of the tokens are the text. Two rules of tokenizers make them differ, both beside control
tokens: SentencePiece vocabularies put a space before the first word of a text and of what follows a control
token, and some control tokens swallow the white space beside them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate, compress, pairwise

from server.llama.backend import Vocabulary

_WHITE = re.compile(rb"\s*")


class OffsetMapper:
    """Places tokens in texts. Safe from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._piece = cache(partial(vocabulary.piece, special=True))  # control tokens written out
        self._is_control = cache(self._read_control)
        self._adds_space = self.spelled(vocabulary.tokenize("a", special=False)) == b" a"

    def _read_control(self, token: int) -> bool:
        """Whether it shows only when it is written out."""
        return not self._vocabulary.piece(token) and bool(self._piece(token))

    def spelled(self, tokens: Sequence[int]) -> bytes:
        """The tokens' pieces, control tokens written out."""
        return b"".join(map(self._piece, tokens))

    def controls(self, tokens: Sequence[int]) -> array[int]:
        """Which of the tokens are control tokens, by index."""
        return array("q", compress(range(len(tokens)), map(self._is_control, tokens)))

    def literal_ends(self, tokens: Sequence[int], start: int) -> array[int]:
        """Where each token ends when the text from byte `start` on is what the tokens spell."""
        return _ends([self._piece(token) for token in tokens], start)

    def ends(self, text: bytes, tokens: Sequence[int], start: int = 0) -> array[int]:
        """Where in the text each token ends, the first beginning at `start`; of the tokens up to a control
        token only, if what follows it cannot be found in the text: a tokenizer may change what it reads."""
        pieces = list(map(self._piece, tokens))
        if text.startswith(b"".join(pieces), start):
            return _ends(pieces, start)
        ends: array[int] = array("q")
        cuts = {0, len(pieces)}
        for control in self.controls(tokens):
            cuts |= {control, control + 1}
        for first, last in pairwise(sorted(cuts)):
            placed = self._place(text, pieces[first:last], ends[-1] if ends else start)
            if placed is None:
                break
            ends += placed
        return ends

    def _place(self, text: bytes, pieces: list[bytes], at: int) -> array[int] | None:
        """The ends of a control token, or of all tokens between two, as they are or without the space that
        the tokenizer has put there, at `at` or behind the white space there that a neighbour swallowed."""
        spellings = [pieces]
        if self._adds_space and pieces[0].startswith(b" "):
            spellings.insert(0, [pieces[0][1:], *pieces[1:]])
        white = _WHITE.match(text, at)
        for begin in (at, white.end() if white else at):
            for spelling in spellings:
                if text.startswith(b"".join(spelling), begin):
                    return _ends(spelling, begin)
        return None


def _ends(pieces: list[bytes], start: int) -> array[int]:
    return array("q", accumulate(map(len, pieces), initial=start))[1:]
