"""Guess for a drafter's own model from earlier text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from drafters.lookup_drafter import PORTION
from server.engine.proposer import Ask, OpenedSession
from server.estimators import Median
from server.sampling.draft_token import DraftGuess
from server.speculation.sources.draft_model import NO_GUESS_LIMIT, RECENT
from server.speculation.sources.lookup import Lookup

LOOKED_UP = (
    64  # tokens that are looked up at once: as many as a lead verifies. Half: long repetitions end early
)


@dataclass(slots=True)
class _Text:
    """A session's text."""

    opened: OpenedSession
    lookup: Lookup = field(default_factory=Lookup)  # of the first n_firm tokens, which will not change
    n_firm: int = 0
    guesses: list[DraftGuess] = field(default_factory=list[DraftGuess])  # for what follows, the next one last


class OwnLookup:
    """Guesses what followed before in the same text. Implements InlineModel."""

    source = "lookup"
    most = NO_GUESS_LIMIT
    beside = False

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._texts: dict[int, _Text] = {}  # by session
        self.td = Median(RECENT)

    def rehearse(self) -> None:
        """Do nothing: the first guess takes as long as any."""

    def follow(self, session: OpenedSession, ask: Ask, n_firm: int | None = None) -> None:
        text = self._texts.get(session.id)
        if text is None or text.opened is not session:
            text = self._texts[session.id] = _Text(session)
        text.n_firm = len(session.tokens) if n_firm is None else n_firm
        if self.behind(session.id) <= PORTION:
            self.read(session.id, PORTION)
        ahead = list(session.tokens[text.n_firm :])
        tokens, confidences = text.lookup.guess(LOOKED_UP)
        agrees = not self.behind(session.id) and tokens[: len(ahead)] == ahead
        found = map(DraftGuess, tokens[len(ahead) :], confidences[len(ahead) :])
        text.guesses = [*found][::-1] if agrees else []

    def behind(self, session: int) -> int:
        text = self._texts.get(session)
        return text.n_firm - text.lookup.n_tokens if text else 0

    def behind_s(self, session: int) -> float:
        return self.td.value

    def read(self, session: int, most: int) -> int:
        text = self._texts[session]
        n = text.lookup.n_tokens
        text.lookup.extend(text.opened.tokens[n : min(n + PORTION, text.n_firm)])
        return text.lookup.n_tokens - n

    def read_ahead(self, session: OpenedSession, most: int) -> int:
        """Read nothing: texts are read once they are followed."""
        return 0

    def guess(self, sessions: Sequence[int], *, second: bool, timed: bool = True) -> list[DraftGuess | None]:
        began = self._clock()
        texts = [self._texts.get(session) for session in sessions]
        guesses = [text.guesses.pop() if text and text.guesses else None for text in texts]
        if sessions:
            self.td.observe(self._clock() - began)
        return guesses

    def overlap(self, work: Callable[[], None]) -> None:
        """Do nothing: a guess takes no time in which anything could be done."""

    def close(self, session: int, *, keep: bool) -> None:
        self._texts.pop(session, None)
