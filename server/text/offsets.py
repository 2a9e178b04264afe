"""Find the byte of a text at which each of its tokens ends.

The joined texts of the tokens differ from the whole text only beside control tokens and at the beginning.
SentencePiece adds a space before a text, and before text that follows a control token. Some control tokens
swallow the white space beside them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, compress, pairwise
from typing import TypeVar

from server.llama.backend import PICTURE_IDS, Vocabulary
from server.text.detokenize import adds_space

T = TypeVar("T")

_WHITE = re.compile(rb"\s*")


class OffsetMapper:
    """Finds the bytes at which tokens of one vocabulary end. Safe from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._piece = _Kept(partial(vocabulary.piece, special=True)).__getitem__  # control tokens written out
        self._is_control = _Kept(self._read_control).__getitem__
        self._adds_space = adds_space(vocabulary)

    def _read_control(self, token: int) -> bool:
        """Return True if the token has text only when control tokens are written out."""
        return not self._vocabulary.piece(token) and bool(self._piece(token))

    def spelled(self, tokens: Sequence[int]) -> bytes:
        """Return the tokens' texts joined, control tokens written out."""
        return b"".join(map(self._piece, tokens))

    def controls(self, tokens: Sequence[int]) -> array[int]:
        """Return the indices of control tokens."""
        return array("q", compress(range(len(tokens)), map(self._is_control, tokens)))

    def runs(self, tokens: Sequence[int]) -> Iterator[bytes]:
        """Yield joined texts of alternating runs of ordinary and control tokens, ordinary first."""
        kind, run = False, list[int]()
        for token in tokens:
            if self._is_control(token) != kind:
                yield self.spelled(run)
                kind, run = not kind, []
            run.append(token)
        yield self.spelled(run)

    def n_added(self, before: Sequence[int], tokens: Sequence[int]) -> int:
        """Return the number of bytes (0 or 1) that the tokenizer added before a text.

        The result is 0 unless the text follows a control token.

        Args:
            before: The tokens before the text.
            tokens: The tokens of the text.
        """
        if not (self._adds_space and before and tokens and self._is_control(before[-1])):
            return 0
        return int(self._piece(tokens[0]).startswith(b" "))

    def literal_ends(self, tokens: Sequence[int], start: int) -> array[int]:
        """Return the byte at which each token ends if the tokens' joined texts begin at byte `start`.

        Unlike ends(), this does not search a text.
        """
        return _piece_ends([self._piece(token) for token in tokens], start)

    def ends(self, text: bytes, tokens: Sequence[int], start: int = 0) -> array[int]:
        """Return the byte offset in the text at which each token ends.

        A tokenizer may normalise text, so the text may lack the texts of some tokens. The result then ends
        at the last control token before these tokens; without such a control token it is empty.

        Args:
            text: The text.
            tokens: Its tokens.
            start: Byte offset at which the first token begins.
        """
        pieces = list(map(self._piece, tokens))
        if text.startswith(b"".join(pieces), start):
            return _piece_ends(pieces, start)
        ends: array[int] = array("q")
        cuts = {0, len(pieces)}
        for control in self.controls(tokens):
            cuts |= {control, control + 1}
        for first, last in pairwise(sorted(cuts)):
            placed = self._find_tokens(text, pieces[first:last], ends[-1] if ends else start)
            if placed is None:
                break
            ends += placed
        return ends

    def _find_tokens(self, text: bytes, pieces: list[bytes], at: int) -> array[int] | None:
        """Find consecutive tokens in a text, at byte `at` or after the white space there.

        The text may lack the space that the tokenizer has added to the first token.

        Returns:
            The byte at which each token ends, None if the tokens' texts are not there.
        """
        spellings = [pieces]
        first = next((i for i, piece in enumerate(pieces) if piece), 0)  # skip positions of a picture
        if self._adds_space and pieces[first].startswith(b" "):
            spellings.insert(0, [*pieces[:first], pieces[first][1:], *pieces[first + 1 :]])
        white = _WHITE.match(text, at)
        for begin in (at, white.end() if white else at):
            for spelling in spellings:
                if text.startswith(b"".join(spelling), begin):
                    return _piece_ends(spelling, begin)
        return None


class _Kept(dict[int, T]):
    """A cache of a function's results by token. Positions of pictures are too many to be cached."""

    def __init__(self, read: Callable[[int], T]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, token: int) -> T:
        value = self._read(token)
        if token < PICTURE_IDS:
            self[token] = value
        return value


def _piece_ends(pieces: list[bytes], start: int) -> array[int]:
    return array("q", accumulate(map(len, pieces), initial=start))[1:]
