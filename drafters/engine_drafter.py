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
from server.drafting.branch import Branch
from server.drafting.draft_session import DraftSession
from server.drafting.expansion import PATH_MIN, TD_WEIGHT
from server.estimators import Median, Smoothed
from server.llama.backend import Vocabulary
from server.sampling.draft_token import DraftGuess

logger = logging.getLogger("duo.drafter")

# Maximum tokens per request, as a multiple of the longest path that the lead takes. As long as guesses are
# right, the drafter needs no other request. Half: twice as many pauses; twice: no gain, since wrong replies
# are cancelled.
PATHS = 4
# If cancelling takes long, a request's tokens take this number of times the wait for its first token, so a
# fifth of the time is waiting. Half: a third; twice: wrong texts continue for twice as long.
BURST = 4
MIN_BURST = (
    4  # minimum tokens per request. Half: a request for two tokens; twice: eight tokens of a wrong text
)
LATEST_REPLIES = (
    9  # requests whose times to the first token count: the median ignores a prompt's first request
)
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
    n_tokens: int  # number of tokens requested
    seen: tuple[int, int] = 0, 0  # numbers of reply pieces and committed tokens when the path last grew
    branch: Branch | None = None  # branch that the reply continues; None: the path

    @property
    def start(self) -> int:
        """Return the position at which the engine's reply begins: after committed tokens and guesses."""
        return self.n_committed + len(self.path)


class EngineDrafter(Drafter):
    """A Drafter that asks an engine for the likeliest continuation of each session.

    When a continuation has proved wrong, the engine is asked again.
    """

    def __init__(self, engine: DraftEngine, vocab: Vocabulary) -> None:
        self._engine = engine
        self._vocab = vocab
        self._asked: dict[int, _Asked] = {}  # by session
        self._beside: dict[int, _Asked] = {}  # the same for its likeliest branch, which may become the path
        self._wake: Callable[[], None] = lambda: None
        self._rests = False  # after a failure
        self._n_failures = 0  # consecutive failures
        self.td = Smoothed(TD_WEIGHT)
        self._first_s = Median(LATEST_REPLIES)  # from requests to their first tokens
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
        if session.lost:
            return False
        asked, beside = self._asked.get(session.id), self._beside.get(session.id)
        has_room = session.n_ahead < session.max_ahead
        if has_room and (asked is None or not self._is_current(asked, session)):
            return not self._rests
        both = (asked if has_room else None, beside)
        return any(one.reply.error or one.seen != _seen(one, session) for one in both if one)

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession]:
        """Add the guesses that the engine has sent to the sessions' paths, without waiting.

        Returns:
            Each session, once for each guess added.
        """
        grown: list[DraftSession] = []
        for session in sessions:
            asked = self._current_request(session)
            if asked is None:
                self._ask_engine(session)
            elif asked.reply.error:
                self._pause_engine(session, asked.reply.error)
            else:
                grown += [session] * self._lengthen_path(session, asked)
                grown += [session] * self._lengthen_branch(session)
        return grown

    def close(self, session: DraftSession, *, keep: bool) -> None:
        self._forget_request(session)

    def _lengthen_path(self, session: DraftSession, asked: _Asked) -> int:
        """Add the tokens of the engine's reply that the path lacks; return the number of guesses added."""
        asked.seen = _seen(asked, session)
        if not asked.reply.said:
            return 0
        self._n_failures = 0
        if asked.reply.token_s:
            self.td.observe(asked.reply.token_s)
            self._first_s.observe(asked.reply.first_s - asked.reply.asked_s)
        guesses = self._guesses_of(asked.reply)
        n_before = asked.start - session.n_committed  # guesses of the path that the request contained
        told = session.path.guesses[:n_before] if n_before > 0 else []
        n_added = session.lengthen([*told, *guesses[max(0, -n_before) :]], PATH_MIN)
        _add_seconds(session, n_added)
        return n_added

    def _current_request(self, session: DraftSession) -> _Asked | None:
        """Return the request whose reply continues the session's text, None if there is none.

        If the lead has committed the branch for which a request was made, that request continues the path.
        """
        asked, beside = self._asked.get(session.id), self._beside.get(session.id)
        if asked and self._is_current(asked, session):
            return asked
        if beside is None or beside.reply.error or not self._is_current(beside, session):
            return None
        del self._beside[session.id]
        self._forget_request(session)
        self._asked[session.id], beside.branch, beside.seen = beside, None, (0, 0)
        return beside

    def _lengthen_branch(self, session: DraftSession) -> int:
        """Ask the engine to continue the likeliest branch, or add guesses of its reply to that branch.

        So, if the lead commits a second choice, there are guesses after it at once.

        Returns:
            The number of guesses added.
        """
        beside = self._beside.get(session.id)
        if beside and (beside.reply.error or beside.branch not in session.branches):
            self._leave(self._beside.pop(session.id))
            beside = None
        if beside is None:
            branch = max(session.branches, key=session.score_of, default=None)
            if branch and len(self._asked) + len(self._beside) < self._engine.n_at_once:
                self._ask_beside(session, branch)
            return 0
        beside.seen = _seen(beside, session)
        branch = beside.branch
        assert branch is not None, "it is one of the session's"
        n_before = len(branch.guesses)
        n_told = beside.start - branch.fork  # guesses of the branch in the prompt
        for guess in self._guesses_of(beside.reply)[n_before - n_told :]:
            full = branch.end >= session.n_committed + session.max_ahead
            if full or session.score_of(branch) * guess.confidence < PATH_MIN:
                break
            branch.add(guess)
        return len(branch.guesses) - n_before

    def _is_current(self, asked: _Asked, session: DraftSession) -> bool:
        """Return True if the reply continues the session's text and may still give guesses."""
        if asked.n_opened != session.n_opened:
            return False
        if session.tokens[asked.n_committed : asked.start] != asked.path:
            return False
        reply, beyond = asked.reply, session.tokens[asked.start :]
        guesses = [guess.token for guess in self._guesses_of(reply)]
        if (n_behind := len(beyond) - len(guesses)) > 0:  # the lead is ahead
            is_over = reply.is_done and not reply.error
            return not is_over and guesses == beyond[: len(guesses)] and self._catches_up(reply, n_behind)
        is_used_up = reply.is_done and len(beyond) == len(guesses)
        ends_text = bool(reply.said) and reply.said[-1].ends_text
        return guesses[: len(beyond)] == beyond and (not is_used_up or ends_text or bool(reply.error))

    def _catches_up(self, reply: Reply, n_behind: int) -> bool:
        """Return True if the reply, n_behind tokens behind the lead, overtakes it before a new one begins."""
        return not reply.said or n_behind * self.td.value <= self._first_s.value

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
            second = one.second if 0 <= (one.second or 0) < self._vocab.size else None
            guesses.append(DraftGuess(one.token, one.confidence, second, one.second_confidence))
        if end is not None and self._vocab.eos is not None:
            guesses.append(DraftGuess(self._vocab.eos, end))
        return guesses

    def _ask_engine(self, session: DraftSession) -> None:
        self._forget_request(session)
        prompt = self._engine_prompt(session.tokens)
        if not prompt:
            return
        self.n_requests += 1
        n, n_tokens = session.n_committed, self._n_wanted(PATHS * session.max_ahead)
        reply = self._engine.ask(prompt, n_tokens, salt=session.salt, ready=self._wake)
        self._asked[session.id] = _Asked(reply, session.n_opened, n, session.tokens[n:], n_tokens, (0, n))

    def _ask_beside(self, session: DraftSession, branch: Branch) -> None:
        tokens = [*session.tokens[: branch.fork], *branch.tokens]
        if not (prompt := self._engine_prompt(tokens)):
            return
        self.n_requests += 1
        n, n_tokens = session.n_committed, self._n_wanted(session.max_ahead)
        reply = self._engine.ask(prompt, n_tokens, salt=session.salt, ready=self._wake)
        self._beside[session.id] = _Asked(reply, session.n_opened, n, tokens[n:], n_tokens, (0, n), branch)

    def _n_wanted(self, most: int) -> int:
        """Return how many tokens to ask for at once, at most `most`.

        If cancelling a request takes time, a short reply is better, since a wrong one soon ends by itself.
        """
        if not self._engine.cancel_s or not self.td.value:
            return most
        return min(most, max(MIN_BURST, round(BURST * self._first_s.value / self.td.value)))

    def _leave(self, asked: _Asked) -> None:
        """Cancel a request, unless it will soon end by itself, so that its connection can be used again."""
        left_s = (asked.n_tokens - len(asked.reply.said)) * self.td.value
        if left_s > self._engine.cancel_s or not self.td.value:
            asked.reply.cancel()

    def _engine_prompt(self, tokens: Sequence[int]) -> str | list[int]:
        """Return the prompt for the engine, without a first token that the engine adds itself."""
        if self._engine.takes_ids:
            return list(tokens)
        vocab = self._vocab
        adds = vocab.add_bos and tokens and tokens[0] == vocab.bos
        return text_of(vocab, tokens[1:] if adds else tokens).decode(errors="ignore")

    def _pause_engine(self, session: DraftSession, error: str) -> None:
        """Stop using the engine for a while, after the session's request has failed with `error`."""
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
        for requests in (self._asked, self._beside):
            if asked := requests.pop(session.id, None):
                self._leave(asked)


def _seen(asked: _Asked, session: DraftSession) -> tuple[int, int]:
    return len(asked.reply.said), session.n_committed


def slots_of(client: EngineClient) -> int:
    """Return how many requests the engine answers at once; 1 if it does not say. Raises EngineError."""
    props = client.fetch("GET", "/props")
    found: object = cast(dict[str, Any], props).get("total_slots") if isinstance(props, dict) else None
    return found if isinstance(found, int) else 1


def _add_seconds(session: DraftSession, n_added: int) -> None:
    """Begin branches of the session with the second choices for the last n_added guesses of its path."""
    path = session.path
    for i in range(len(path.guesses) - n_added, len(path.guesses)):
        for token, confidence in path.guesses[i].others:
            if path.scores[i] * confidence >= PATH_MIN:
                session.branch(path.fork + i, DraftGuess(token, confidence))


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
    """Return how the engine's vocabulary differs from the leads', None if no difference is found."""
    special = [vocab.piece(token, special=True).decode(errors="ignore") for token in sorted(vocab.eog)]
    for text in filter(None, [*PROBES, *special]):
        own, theirs = vocab.tokenize(text, special=True), _engine_tokens(client, text)
        if own != theirs:
            return f"{text[:20]!r} is {theirs} there, {own} for the leads"
    return None
