"""Replay known texts as a drafter for measurements, with deliberate errors and a fixed time per guess."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from drafters.drafter import Drafter
from drafters.drafter_settings import DrafterSettings
from server.drafting.draft_session import DraftSession
from server.drafting.expansion import TD_WEIGHT
from server.errors import StartupError
from server.estimators import Smoothed
from server.sampling.draft_token import DraftGuess
from server.sampling.noise import mix

_TOKENS = TypeAdapter(list[int])


@dataclass(frozen=True, slots=True)
class Script:
    """Settings of a replay."""

    accept: float  # probability that a guess is right
    td_s: float  # seconds of a round of guesses, one for each session
    seed: int = 0  # determines which guesses are wrong


@dataclass(slots=True)
class _Matched:
    """The known text that a session follows: its index `text`, None if there is none.

    The search was made after n_opened Open messages. The text agrees with the session's first n_checked
    committed tokens.
    """

    n_opened: int
    text: int | None = None
    n_checked: int = 0


class ReplayDrafter(Drafter):
    """A Drafter that guesses the rest of a known text for sessions that begin like it.

    After a wrong guess it continues to guess, as a model does.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        script: Script,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._texts = [list(text) for text in texts]
        self._script = script
        self.td = Smoothed(TD_WEIGHT, script.td_s)
        self._clock = clock
        self._sleep = sleep
        self.busy_until = 0.0
        self._matched: dict[int, _Matched] = {}  # by session

    def obstacle(self, session: DraftSession) -> str | None:
        return "it is none of the texts to be replayed" if self._text_of(session) is None else None

    def wants(self, session: DraftSession) -> bool:
        text = self._text_of(session)
        end = session.n_committed + session.max_ahead
        return not session.lost and (text is None or len(session.tokens) < min(end, len(self._texts[text])))

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession]:
        """Make one guess for each session, after td_s seconds."""
        now = self._clock()
        self.busy_until = max(self.busy_until, now) + self._script.td_s
        self._sleep(max(0.0, self.busy_until - now))
        for session in sessions:
            text = self._text_of(session)
            assert text is not None, "an obstacle"
            self._add_guess(session, text)
        return list(sessions)

    def close(self, session: DraftSession, *, keep: bool) -> None:
        self._matched.pop(session.id, None)

    def _add_guess(self, session: DraftSession, text: int) -> None:
        token = self.token(text, len(session.tokens))
        session.add(DraftGuess(token, self._script.accept))

    def token(self, text: int, position: int) -> int:
        """Return the guess for a position of a known text: the right token or a deliberately wrong one."""
        right = self._texts[text][position]
        if self._chance_at(text, position) < self._script.accept:
            return right
        return right - 1 if right > 0 else 1

    def _chance_at(self, text: int, position: int) -> float:
        """Return a number in [0, 1) that depends only on the arguments and the seed."""
        return mix(mix(mix(self._script.seed) + text) + 4 * position + 1) / (1 << 64)

    def _text_of(self, session: DraftSession) -> int | None:
        """Return the index of the known text that begins with the session's committed tokens, else None.

        All texts are searched after an Open. After a commit, only the text that was found is compared.
        """
        matched = self._matched.get(session.id)
        if matched is None or matched.n_opened != session.n_opened:
            matched, candidates = _Matched(session.n_opened), range(len(self._texts))
            self._matched[session.id] = matched
        else:
            candidates = () if matched.text is None else (matched.text,)
        new = slice(matched.n_checked, session.n_committed)
        found = (text for text in candidates if self._texts[text][new] == session.tokens[new])
        matched.text, matched.n_checked = next(found, None), session.n_committed
        return matched.text


def replay_drafter(settings: DrafterSettings) -> ReplayDrafter:
    """Return a replay of the settings' texts. Raises StartupError."""
    if settings.texts is None:
        raise StartupError("nothing to replay: give a file of texts with --texts")
    script = Script(settings.accept, settings.td_ms / 1000, settings.seed)
    return ReplayDrafter(read_texts(settings.texts), script)


def read_texts(path: Path) -> list[list[int]]:
    """Read texts with their prompts: each line is a JSON list of token ids. Raises StartupError."""
    try:
        lines = path.read_bytes().splitlines()
        return [_TOKENS.validate_json(line) for line in lines if line.strip()]
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise StartupError(f"{path} is not one JSON list of token ids to a line") from error
