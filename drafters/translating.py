"""Draft for a lead with another vocabulary by translating tokens and guesses through text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafters.drafter import Drafter
from drafters.retokenising import Growing, text_of, translated
from server.drafting.draft_session import GREEDY, DraftSession
from server.llama.backend import Vocabulary
from server.speculation.wire.messages import Open, chain_start


@dataclass(slots=True)
class _Translation:
    """A lead's session in the drafter's own tokens, after n_opened Open messages and n_committed tokens."""

    text: Growing
    n_opened: int
    own: DraftSession | None = None  # None: no token yet
    n_committed: int = 0
    n_guesses: int = -1  # number of guesses of `own` at the last translation


class TranslatingDrafter(Drafter):
    """A Drafter for sessions in `target` tokens, by way of a drafter that guesses in `own` tokens.

    Noise depends on token ids and positions, which differ between vocabularies, so guesses are the likeliest
    tokens. Branches are not translated.
    """

    def __init__(self, drafter: Drafter, own: Vocabulary, target: Vocabulary) -> None:
        self._drafter = drafter
        self.td = drafter.td
        self._own = own
        self._target = target
        self._translations: dict[int, _Translation] = {}  # by session

    def watch(self, has_messages: Callable[[], bool], wake: Callable[[], None]) -> None:
        self._drafter.watch(has_messages, wake)

    def obstacle(self, session: DraftSession) -> str | None:
        translation = self._translations.get(session.id)
        seen = translation.n_committed if translation and translation.n_opened == session.n_opened else 0
        new = session.tokens[seen : session.n_committed]
        if new and (min(new) < 0 or max(new) >= self._target.size):
            return f"it has tokens outside its vocabulary of {self._target.size}"
        own = self._current_translation(session).own
        return self._drafter.obstacle(own) if own is not None else None

    def wants(self, session: DraftSession) -> bool:
        if session.lost or session.n_ahead >= session.max_ahead:
            return False
        translation = self._translations.get(session.id)
        if translation is None or (translation.n_opened, translation.n_committed) != (
            session.n_opened,
            session.n_committed,
        ):
            return True
        return (
            translation.own is not None
            and not translation.text.unfinished
            and self._drafter.wants(translation.own)
        )

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession] | None:
        translations = [(session, self._current_translation(session)) for session in sessions]
        wanted = [
            t.own for _, t in translations if t.own and not t.text.unfinished and self._drafter.wants(t.own)
        ]
        full = bool(wanted) and self._drafter.advance(wanted) is None
        grown = [
            session
            for session, translation in translations
            for _ in range(self._lengthen_path(session, translation))
        ]
        return grown if grown or not full else None

    def close(self, session: DraftSession, *, keep: bool) -> None:
        translation = self._translations.pop(session.id, None)
        if translation is not None and translation.own is not None:
            self._drafter.close(translation.own, keep=keep)

    def _current_translation(self, session: DraftSession) -> _Translation:
        """Return the session in the drafter's own tokens, updated with all committed tokens.

        Guesses that agree with these tokens are kept.
        """
        translation = self._translations.get(session.id)
        own = translation.own if translation else None
        if translation is None or translation.n_opened != session.n_opened:
            translation = self._translations[session.id] = _Translation(
                Growing(self._own), session.n_opened, own
            )
        if translation.n_committed == session.n_committed:
            return translation
        new = session.tokens[translation.n_committed : session.n_committed]
        tokens = tuple(translation.text.extend(text_of(self._target, new)))
        translation.n_committed, translation.n_guesses = session.n_committed, -1
        if tokens and own is None:
            translation.own = DraftSession(_open_in_own(session, tokens))
        elif tokens and own is not None:
            before = tuple(own.tokens[: own.n_committed])
            own.reopen(_open_in_own(session, tokens), anew=tokens[: len(before)] != before)
        return translation

    def _lengthen_path(self, session: DraftSession, translation: _Translation) -> int:
        """Add the translated guesses to the session's path; return the number added."""
        if (
            translation.own is None
            or translation.text.unfinished
            or translation.n_guesses == translation.own.n_ahead
        ):
            return 0
        translation.n_guesses = translation.own.n_ahead
        more = self._drafter.wants(translation.own)
        return session.lengthen(translated(translation.own.path.guesses, self._own, self._target, more=more))


def _open_in_own(session: DraftSession, tokens: tuple[int, ...]) -> Open:
    """Return an Open for the same session with `tokens`, which belong to the drafter's own vocabulary."""
    chain = chain_start(tokens)
    return Open(session.lead, session.id, chain, session.max_ahead, GREEDY, tokens, session.salt)
