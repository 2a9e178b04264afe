"""Tokenise guarded texts; find and insert guards."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

from server.llama.backend import Vocabulary
from server.text.guard import GUARD, GUARD_BYTES, Spellings, controls_of, unguarded

_GUARD = re.compile(re.escape(GUARD_BYTES))


class GuardedTokenizer:
    """Tokenises guarded texts: only what the template wrote becomes control tokens. Safe from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._controls = Spellings(controls_of(vocabulary))
        self._eats_after = cache(self._swallows_after)
        self._eats_before = cache(self._swallows_before)

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a guarded text, without BOS."""
        if GUARD not in text:
            return self._vocabulary.tokenize(text, special=True)
        tokens, done = list[int](), 0
        spans = [(0, 0), *self._controls.spans(text), (len(text), len(text))]
        for (begin, start), (end, after) in pairwise(spans):
            if GUARD in (stretch := text[start:end]):
                tokens += self._tokenize_nonempty(text[done:start], special=True)
                stretch = self._trim_swallowed(unguarded(stretch), text[begin:start], text[end:after])
                tokens += self._tokenize_nonempty(stretch, special=False)
                done = end
        return tokens + self._tokenize_nonempty(text[done:], special=True)

    def _tokenize_nonempty(self, text: str, *, special: bool) -> list[int]:
        return self._vocabulary.tokenize(text, special=special) if text else []

    def _trim_swallowed(self, text: str, before: str, after: str) -> str:
        """Return `text` without the white space that the control tokens `before` and `after` it swallow."""
        text = text.lstrip() if before and self._eats_after(before) else text
        return text.rstrip() if after and self._eats_before(after) else text

    def _swallows_after(self, control: str) -> bool:
        """Return True if the control token swallows the white space after it."""
        tokenize = self._vocabulary.tokenize
        return tokenize(f"{control}a", special=True) == tokenize(f"{control}\n a", special=True)

    def _swallows_before(self, control: str) -> bool:
        """Return True if the control token swallows the white space before it."""
        tokenize = self._vocabulary.tokenize
        return tokenize(f"a{control}", special=True) == tokenize(f"a \n{control}", special=True)


def guards_in(data: bytes) -> list[int]:
    """Return the positions of guards (characters put into text that only spells a control token).

    Each position is a byte index in the text without guards.
    """
    if GUARD_BYTES not in data:
        return []
    return [found.start() - i * len(GUARD_BYTES) for i, found in enumerate(_GUARD.finditer(data))]


def with_guards(data: bytes, at: Sequence[int]) -> bytes:
    """Return a text with guards inserted. `at`: ascending byte positions in the text without guards."""
    if not at:
        return data
    parts = (data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True))
    return GUARD_BYTES.join(parts)


def behind_guards(ends: array[int], at: Sequence[int]) -> array[int]:
    """Convert token ends from byte indices without guards to byte indices with guards.

    Args:
        ends: The ends in the text without guards.
        at: Ascending positions of the guards, as from guards_in().
    """
    if not at:
        return ends
    return array("q", (end + len(GUARD_BYTES) * bisect_right(at, end) for end in ends))


def spelled_alike(runs: Iterable[bytes], spellings: Spellings) -> list[int]:
    """Return the byte positions at which a reply's text needs guards.

    Args:
        runs: The text in alternating runs of ordinary and of control tokens, ordinary ones first.
        spellings: Finds the texts of control tokens.
    """
    found, start = list[int](), 0
    for i, run in enumerate(runs):
        text = "" if i % 2 else run.decode(errors="surrogateescape")
        for _, end in spellings.spans(text):
            found.append(start + len(text[: end - 1].encode(errors="surrogateescape")))
        start += len(run)
    return found
