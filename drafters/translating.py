"""Draft for a lead of another vocabulary, by translating tokens and guesses through text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafters.drafter import Drafter
from drafters.retokenising import Growing, text_of, translated
from server.drafting.draft_session import GREEDY, DraftSession
from server.llama.backend import Vocabulary
from server.speculation.wire.messages import Open, chain_start


@dataclass(slots=True)
class _Twin:
    """A lead's session in the drafter's own tokens, as of n_opened Open messages and n_committed tokens."""

    text: Growing
    n_opened: int
    own: DraftSession | None = None  # None: no token yet
    n_committed: int = 0
    n_guesses: int = -1  # guesses of `own` when they were last translated


class TranslatingDrafter(Drafter):
    """Drafts for sessions in `target` tokens with a drafter that guesses in `own` tokens.

    Noise depends on token ids and positions, which differ between vocabularies, so guesses are the likeliest
    tokens. Branches are not translated.
    """

    def __init__(self, drafter: Drafter, own: Vocabulary, target: Vocabulary) -> None:
        self._drafter = drafter
        self.td = drafter.td
        self._own = own
        self._target = target
        self._twins: dict[int, _Twin] = {}  # by session

    def watch(self, news: Callable[[], bool], wake: Callable[[], None]) -> None:
        self._drafter.watch(news, wake)

    def obstacle(self, session: DraftSession) -> str | None:
        twin = self._twins.get(session.id)
        seen = twin.n_committed if twin and twin.n_opened == session.n_opened else 0
        new = session.tokens[seen : session.n_committed]
        if new and (min(new) < 0 or max(new) >= self._target.size):
            return f"it has tokens outside its vocabulary of {self._target.size}"
        own = self._translated_twin(session).own
        return self._drafter.obstacle(own) if own is not None else None

    def wants(self, session: DraftSession) -> bool:
        if session.lost or session.n_ahead >= session.max_ahead:
            return False
        twin = self._twins.get(session.id)
        if twin is None or (twin.n_opened, twin.n_committed) != (session.n_opened, session.n_committed):
            return True
        return twin.own is not None and not twin.text.unfinished and self._drafter.wants(twin.own)

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession] | None:
        twins = [(session, self._translated_twin(session)) for session in sessions]
        wanted = [t.own for _, t in twins if t.own and not t.text.unfinished and self._drafter.wants(t.own)]
        full = bool(wanted) and self._drafter.advance(wanted) is None
        grown = [session for session, twin in twins for _ in range(self._lengthen_path(session, twin))]
        return grown if grown or not full else None

    def close(self, session: DraftSession, *, keep: bool) -> None:
        twin = self._twins.pop(session.id, None)
        if twin is not None and twin.own is not None:
            self._drafter.close(twin.own, keep=keep)

    def _translated_twin(self, session: DraftSession) -> _Twin:
        """Return the session's translation into the drafter's own tokens (its twin), up to date.

        The twin has all committed tokens. Its guesses that agree with them stay.
        """
        twin = self._twins.get(session.id)
        own = twin.own if twin else None
        if twin is None or twin.n_opened != session.n_opened:
            twin = self._twins[session.id] = _Twin(Growing(self._own), session.n_opened, own)
        if twin.n_committed == session.n_committed:
            return twin
        new = session.tokens[twin.n_committed : session.n_committed]
        tokens = tuple(twin.text.extend(text_of(self._target, new)))
        twin.n_committed, twin.n_guesses = session.n_committed, -1
        if tokens and own is None:
            twin.own = DraftSession(_open_in_own(session, tokens))
        elif tokens and own is not None:
            before = tuple(own.tokens[: own.n_committed])
            own.reopen(_open_in_own(session, tokens), anew=tokens[: len(before)] != before)
        return twin

    def _lengthen_path(self, session: DraftSession, twin: _Twin) -> int:
        """Add the guesses of the session's translation (`twin`) to its path; return the number added."""
        if twin.own is None or twin.text.unfinished or twin.n_guesses == twin.own.n_ahead:
            return 0
        twin.n_guesses = twin.own.n_ahead
        more = self._drafter.wants(twin.own)
        return session.lengthen(translated(twin.own.path.guesses, self._own, self._target, more=more))


def _open_in_own(session: DraftSession, tokens: tuple[int, ...]) -> Open:
    """Return an Open for the same session with these tokens, which are of the drafter's own vocabulary."""
    chain = chain_start(tokens)
    return Open(session.lead, session.id, chain, session.max_ahead, GREEDY, tokens, session.salt)
