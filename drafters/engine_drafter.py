"""Draft with another inference engine: llama-server, Ollama, LM Studio, vLLM, or another duo."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from drafters.drafter import Drafter
from drafters.engine_client import DraftEngine, EngineClient, Reply
from drafters.engine_dialects import UNTOLD, Dialect, LlamaServer, LlamaServerText, Ollama, OpenAI
from drafters.retokenising import Piece, retokenised, text_of
from server.drafting.draft_session import DraftSession
from server.drafting.expansion import PATH_MIN, TD_WEIGHT
from server.estimators import Smoothed
from server.llama.backend import Vocabulary
from server.sampling.draft_token import DraftGuess

logger = logging.getLogger("duo.drafter")

# Tokens per request, as a multiple of the longest path that the lead takes: a right reply continues without
# another request. Half: pauses are twice as frequent; twice: no gain, since wrong replies are cancelled.
PATHS = 4
RETRY_S = 0.5  # seconds of the first pause, doubled after each failure. Half: two more requests in vain
MAX_RETRY_S = 30.0  # seconds of the longest pause. Twice: an engine that is back is unused for a minute

PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    " def f(x):\n\treturn {'a': [1, 2.5e-3, 1000000]}  # naïve café, 東京, Привет",
    "\n\n   \n\t\t#include <stdio.h>\r\n",
)
"""Texts that both vocabularies must tokenise equally before token ids are used."""


@dataclass(slots=True)
class _Asked:
    """A request to the engine for the continuation of a session's text, and the reply so far."""

    reply: Reply
    n_opened: int  # number of the session's Open messages at the request
    n_committed: int  # number of its committed tokens at the request
    path: list[int]  # guesses after these tokens at the request
    seen: tuple[int, int] = 0, 0  # numbers of reply pieces and committed tokens when the path last grew

    @property
    def start(self) -> int:
        """Return the position at which the engine's reply begins: after committed tokens and guesses."""
        return self.n_committed + len(self.path)


class EngineDrafter(Drafter):
    """Asks the engine for the likeliest continuation of each session; asks again when it is wrong."""

    def __init__(self, engine: DraftEngine, vocab: Vocabulary) -> None:
        self._engine = engine
        self._vocab = vocab
        self._asked: dict[int, _Asked] = {}  # by session
        self._wake: Callable[[], None] = lambda: None
        self._rests = False  # after a failure
        self._n_failures = 0  # consecutive failures
        self.td = Smoothed(TD_WEIGHT)
        self.n_requests = 0

    def watch(self, has_messages: Callable[[], bool], wake: Callable[[], None]) -> None:
        self._wake = wake

    def obstacle(self, session: DraftSession) -> str | None:
        asked = self._asked.get(session.id)
        known = asked.n_committed if asked and asked.n_opened == session.n_opened else 0
        new = session.tokens[known : session.n_committed]
        if new and (min(new) < 0 or max(new) >= self._vocab.size):
            return f"it has tokens outside the vocabulary of {self._vocab.size}"
        return self._engine.refusal(len(session.tokens), session.salt)

    def wants(self, session: DraftSession) -> bool:
        """Return True if advance() has work: the engine has sent data, has failed, or must be asked."""
        if session.lost or session.n_ahead >= session.max_ahead:
            return False
        asked = self._asked.get(session.id)
        if asked is None or not self._is_current(asked, session):
            return not self._rests
        return bool(asked.reply.error) or asked.seen != (len(asked.reply.said), session.n_committed)

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession]:
        """Add the guesses that the engine has sent to the sessions' paths, without waiting.

        Returns:
            Each session, once for each guess added.
        """
        grown: list[DraftSession] = []
        for session in sessions:
            asked = self._asked.get(session.id)
            if asked is None or not self._is_current(asked, session):
                self._ask_engine(session)
            elif asked.reply.error:
                self._pause_engine(session, asked.reply.error)
            else:
                grown += [session] * self._lengthen_path(session, asked)
        return grown

    def close(self, session: DraftSession, *, keep: bool) -> None:
        self._forget_request(session)

    def _lengthen_path(self, session: DraftSession, asked: _Asked) -> int:
        """Add the tokens of the engine's reply that the path lacks; return the number of guesses added."""
        asked.seen = len(asked.reply.said), session.n_committed
        if not asked.reply.said:
            return 0
        self._n_failures = 0
        if asked.reply.token_s:
            self.td.observe(asked.reply.token_s)
        guesses = self._guesses_of(asked.reply)
        n_before = asked.start - session.n_committed  # guesses of the path that the request contained
        told = session.path.guesses[:n_before] if n_before > 0 else []
        return session.lengthen([*told, *guesses[max(0, -n_before) :]], PATH_MIN)

    def _is_current(self, asked: _Asked, session: DraftSession) -> bool:
        """Return True if the reply continues the session's text and may still give guesses."""
        if asked.n_opened != session.n_opened:
            return False
        if session.tokens[asked.n_committed : asked.start] != asked.path:
            return False
        reply, beyond = asked.reply, session.tokens[asked.start :]
        guesses = [guess.token for guess in self._guesses_of(reply)]
        if len(beyond) > len(guesses):  # the lead is ahead: the engine must read the new text first
            return not guesses and not (reply.is_done and not reply.error)
        is_used_up = reply.is_done and len(beyond) == len(guesses)
        ends_text = bool(reply.said) and reply.said[-1].ends_text
        return guesses[: len(beyond)] == beyond and (not is_used_up or ends_text or bool(reply.error))

    def _guesses_of(self, reply: Reply) -> list[DraftGuess]:
        said = list(reply.said)
        end = UNTOLD if said and said[-1].ends_text else None
        if not self._engine.takes_ids:
            pieces = [Piece(one.text.encode(), one.confidence) for one in said if one.text]
            return retokenised(pieces, self._vocab, end=end, more=True)
        guesses: list[DraftGuess] = []
        for one in said:
            if one.token is None:
                continue
            if not 0 <= one.token < self._vocab.size:  # the lead's vocabulary lacks this token
                return guesses
            guesses.append(DraftGuess(one.token, one.confidence))
        if end is not None and self._vocab.eos is not None:
            guesses.append(DraftGuess(self._vocab.eos, end))
        return guesses

    def _ask_engine(self, session: DraftSession) -> None:
        self._forget_request(session)
        prompt = self._engine_prompt(session.tokens)
        if not prompt:
            return
        self.n_requests += 1
        n_tokens = PATHS * session.max_ahead
        reply = self._engine.ask(prompt, n_tokens, salt=session.salt, ready=self._wake)
        n = session.n_committed
        self._asked[session.id] = _Asked(reply, session.n_opened, n, session.tokens[n:], (0, n))

    def _engine_prompt(self, tokens: Sequence[int]) -> str | list[int]:
        """Return the prompt for the engine, without a first token that the engine adds itself."""
        if self._engine.takes_ids:
            return list(tokens)
        vocab = self._vocab
        adds = vocab.add_bos and tokens and tokens[0] == vocab.bos
        return text_of(vocab, tokens[1:] if adds else tokens).decode(errors="ignore")

    def _pause_engine(self, session: DraftSession, error: str) -> None:
        """Stop using the engine for a while."""
        self._forget_request(session)
        if not self._n_failures:
            logger.warning("%s fails: %s", self._engine.name, error)
        delay_s = min(MAX_RETRY_S, RETRY_S * 2**self._n_failures)
        self._n_failures = min(self._n_failures + 1, 16)
        if not self._rests:
            self._rests = True
            self._engine.after(delay_s, self._go_on)

    def _go_on(self) -> None:
        self._rests = False
        self._wake()

    def _forget_request(self, session: DraftSession) -> None:
        if asked := self._asked.pop(session.id, None):
            asked.reply.cancel()


def dialect_of(client: EngineClient, vocab: Vocabulary) -> Dialect:
    """Return the engine's dialect, found by its answers, and log it.

    Raises:
        EngineError: There is no engine, or it refuses this client.
    """
    tokens = _engine_tokens(client, PROBES[0])
    if tokens is None:
        ollama = client.fetch("GET", "/api/version")
        dialect: Dialect = Ollama() if isinstance(ollama, dict) and "version" in ollama else OpenAI()
        why = "it sends no token ids"
    elif (why := _vocabulary_difference(client, vocab)) is None:
        dialect = LlamaServer()
    else:
        dialect = LlamaServerText()
    means = f"text, since {why}" if why else "token ids"
    logger.info("the engine at %s answers as %s, by %s", client.url, dialect.name, means)
    return dialect


def _engine_tokens(client: EngineClient, text: str) -> list[int] | None:
    """Return the engine's tokens of a text, None if it cannot tokenise."""
    answer = client.fetch("POST", "/tokenize", {"content": text, "add_special": False, "parse_special": True})
    tokens: object = cast(dict[str, Any], answer).get("tokens") if isinstance(answer, dict) else None
    return cast(list[int], tokens) if isinstance(tokens, list) else None


def _vocabulary_difference(client: EngineClient, vocab: Vocabulary) -> str | None:
    """Return where the engine's vocabulary differs from the leads', None if no difference is found."""
    special = [vocab.piece(token, special=True).decode(errors="ignore") for token in sorted(vocab.eog)]
    for text in filter(None, [*PROBES, *special]):
        own, theirs = vocab.tokenize(text, special=True), _engine_tokens(client, text)
        if own != theirs:
            return f"{text[:20]!r} is {theirs} there, {own} for the leads"
    return None
