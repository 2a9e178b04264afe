"""Limit the length of a reply's thoughts by a constraint that closes them at the limit.

If the limit falls within a character, the character is completed first, because a grammar cannot continue in
the middle of a character.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.formats.description import tokens_in
from server.grammar.compiler import Start
from server.llama.backend import Vocabulary
from server.sampling.constraint import Constraint
from server.text.detokenize import marker_tokens
from server.text.guard import OrdinaryText


@dataclass(frozen=True, slots=True)
class ThoughtLimit:
    """A limit on the length of thoughts."""

    most: int  # maximum tokens of thoughts, including a closing marker that the model writes itself
    open: str  # the marker that opens thoughts
    close: str  # the marker that closes thoughts
    ending: str  # text written at the limit, which contains `close`
    opened: bool  # True: the prompt has opened the thoughts

    def start(self, vocabulary: Vocabulary, inner: Start | None) -> Callable[[], ThinkingBudget]:
        """Return a function that begins a reply under this limit and, if not None, the constraint `inner`."""
        forced = tuple(vocabulary.tokenize(self.ending, special=True))
        return lambda: ThinkingBudget(self, vocabulary, forced, inner() if inner else None)


class ThinkingBudget:
    """Implements Constraint: limits the thoughts of one reply.

    If thoughts are opened again after content, the remaining part of the limit applies. At the limit the
    reply must continue with the ending, which closes the thoughts. The inner constraint reads the ending up
    to the first token that it does not allow. A constraint of the answer alone thus reads no token of the
    ending, and begins with the answer.
    """

    def __init__(
        self, limit: ThoughtLimit, vocabulary: Vocabulary, ending: tuple[int, ...], inner: Constraint | None
    ) -> None:
        """Begin a reply.

        Args:
            limit: The limit.
            vocabulary: The vocabulary.
            ending: The tokens written at the limit.
            inner: Another constraint of the reply.
        """
        self._vocabulary = vocabulary
        self._inner = inner
        self._markers = limit.open, limit.close
        self._ordinary = OrdinaryText(marker_tokens(vocabulary, tokens_in(limit.open + limit.close)))
        self._inside = limit.opened
        self._left = limit.most
        self._ending = ending
        self._forced: tuple[int, ...] = ()
        self._taken = False  # True while the inner constraint has accepted all tokens of the ending so far
        self._tail = ""  # end of the guarded text, in which a marker may be forming
        self._character = codecs.getincrementaldecoder("utf-8")("replace")
        self._any = np.ones(vocabulary.size, dtype=np.bool_)
        self._close_at_limit()

    def allows(self, token: int) -> bool:
        if self._forced:
            return token == self._forced[0]
        return self._inner is None or self._inner.allows(token)

    def mask(self) -> npt.NDArray[np.bool_]:
        if not self._forced:
            return self._any if self._inner is None else self._inner.mask()
        only = np.zeros(self._vocabulary.size, dtype=np.bool_)
        only[self._forced[0]] = True
        return only

    def accept(self, token: int) -> None:
        if self._inner is not None and self._inner_takes(token, self._inner):
            self._inner.accept(token)
        if self._forced:
            self._forced = self._forced[1:] if token == self._forced[0] else ()
            self._inside, self._tail = bool(self._forced), ""
            return
        self._left -= self._inside
        piece = self._vocabulary.piece(token, special=True)
        text = self._character.decode(piece)
        self._find_marker(self._ordinary.guarded(token, text))
        self._close_at_limit()

    def forced(self) -> tuple[int, ...]:
        if self._forced:
            return self._forced
        return self._inner.forced() if self._inner is not None else ()

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """Return the length of the longest prefix of `tokens` that may follow, at most up to the limit."""
        if self._forced:
            pairs = enumerate(zip(tokens, self._forced, strict=False))
            return next(
                (n for n, (one, forced) in pairs if one != forced), min(len(tokens), len(self._forced))
            )
        n = len(tokens) if self._inner is None else self._inner.n_allowed(tokens)
        return min(n, max(self._left, 0)) if self._inside else n

    def _inner_takes(self, token: int, inner: Constraint) -> bool:
        """Return True if the inner constraint must read a token.

        It reads all tokens outside the ending, and tokens of the ending up to the first one that it does not
        allow.
        """
        if self._forced and token == self._forced[0]:
            self._taken = self._taken and inner.allows(token)
        return self._taken or not self._forced

    def _find_marker(self, text: str) -> None:
        marker = self._markers[self._inside]
        self._tail += text
        if marker in self._tail:
            self._inside, self._tail = not self._inside, ""
        self._tail = self._tail[-len(marker) :]

    def _close_at_limit(self) -> None:
        if self._inside and self._left <= 0 and not self._character.getstate()[0]:
            self._forced = self._ending
            self._taken = True
