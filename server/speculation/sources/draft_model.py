"""Draft with a model inside the lead, over its own Backend, between steps. For a lead with one device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from server.drafting.branch import NO_SEQ
from server.drafting.draft_cache import DraftCache
from server.drafting.draft_session import DraftSession
from server.engine.proposer import Ask, OpenedSession
from server.errors import BackendError
from server.estimators import Median, Ratio
from server.llama.backend import Backend, Batch
from server.sampling.draft_token import DraftGuess, guess
from server.sampling.draw import distribution
from server.speculation.rates import KEEP_RATE
from server.speculation.shape_times import SETTLING
from server.speculation.step_times import LATEST
from server.speculation.wire.messages import MAX_MESSAGE_TOKENS, Open

logger = logging.getLogger("duo.drafters")

NO_GUESS_LIMIT = MAX_MESSAGE_TOKENS  # guesses: no limit but the request's


class DraftModel:
    """A draft model in the lead, with a path of guesses per session. Implements InlineModel.

    It draws with the lead's sampling parameters and noise, to guess the token that the lead draws.
    """

    source = "draft"
    most = NO_GUESS_LIMIT
    beside = False  # its own decodes would take the GPU from the target's

    def __init__(
        self,
        backend: Backend,
        *,
        distributions: bool = False,
        one_shape: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin without sessions.

        Args:
            backend: The draft model.
            distributions: True: return each guess with the distribution that it was sampled from.
            one_shape: True: decodes of guesses have one row per session, not one or two, because a change of
                the number of rows costs more than a row does (docs/adr/0010).
            clock: Returns the time in seconds.
        """
        self._backend = backend
        self._most_rows = 1 if one_shape else 2  # rows of each session in a decode of guesses
        self._distributions = distributions
        self._clock = clock
        self._cache = DraftCache(backend)
        self._paths: dict[int, DraftSession] = {}
        self._n_free = 0  # cells free without eviction, by the latest count
        self._failed = not backend.can_trim  # wrong guesses must be trimmed
        if self._failed:
            advice = "recurrent models draft in a process of their own only: --draft-mode async"
            logger.warning("%s is not used: %s", backend.name, advice)
        self.td = Median(LATEST)  # seconds to guess for one session or several at once
        self._row_s = Ratio(KEEP_RATE)  # seconds per row of catching up, beyond a guess's time
        self._meanwhile: Callable[[], None] | None = None

    def rehearse(self) -> None:
        for i in range(0 if self._failed else SETTLING + LATEST):
            batch = Batch()
            batch.extend(0, 0, [0], 1)
            began = self._clock()
            try:
                self._backend.decode(batch)
            except BackendError as error:
                self._fail(error)
                return
            if i >= SETTLING:
                self.td.observe(self._clock() - began)
            self._backend.trim(0, 0)

    def follow(self, session: OpenedSession, ask: Ask) -> None:
        """Begin a new path of guesses after the session's committed tokens.

        Cells of earlier guesses that were right are kept.
        """
        path, tokens = self._paths.get(session.id), session.tokens
        if path is None:
            salt, n_dropped = session.bounds.salt, session.n_dropped
            opened = Open("", session.id, 0, NO_GUESS_LIMIT, session.sampling, tuple(tokens), salt, n_dropped)
            self._paths[session.id] = path = DraftSession(opened)
        else:
            path.follow(list(tokens[path.n_committed :]))
            path.forget_guesses()
            self._cache.trim(path)
        self._cache.admit(path)
        self._n_free = 0

    def behind(self, session: int) -> int:
        """Return the number of tokens to evaluate before the decode that makes the next guess."""
        path = self._paths.get(session)
        return self._n_behind(path) if path else 0

    def behind_s(self, session: int) -> float:
        """Return the estimated seconds to evaluate the tokens of behind()."""
        return self.td.value + self.behind(session) * self._row_s.value

    def read(self, session: int, most: int) -> int:
        """Evaluate up to `most` of the tokens of behind(), in one decode.

        Returns how many were evaluated.
        """
        path = self._ready(session)
        n = min(most, self._n_behind(path)) if path else 0
        try:
            if path and n > 0 and not self._failed and self._has_room():
                return self._evaluate(path, n)
        except BackendError as error:
            self._fail(error)
        return 0

    def read_ahead(self, session: OpenedSession, most: int) -> int:
        """Evaluate up to `most` tokens of a prompt that the target is still evaluating; return how many."""
        self.follow(session, Ask(session.id, 0))
        return self.read(session.id, most)

    def guess(self, sessions: Sequence[int], *, second: bool, timed: bool = True) -> list[DraftGuess | None]:
        """Append a guess to each session's path, and return the guesses in the order of `sessions`.

        None stands for a session whose guess could not be made. With `second`, each guess also has the
        likeliest other token. `timed` is ignored.
        """
        if self._failed:
            return [None] * len(sessions)
        if self._meanwhile is not None and not self._backend.overlaps:
            self._meanwhile()
        began = self._clock()
        paths = [path for session in sessions if (path := self._ready(session))] if self._has_room() else []
        try:
            caught_up = [self._evaluate(path, n) for path in paths if (n := self._n_behind(path))]
            if caught_up:
                paths = [path for path in paths if not self._n_behind(path)]
            guesses = self._extend(paths, second) if paths else {}
        except BackendError as error:
            self._fail(error)
            return [None] * len(sessions)
        if paths and not caught_up:
            self.td.observe(self._clock() - began)
        return [guesses.get(session) for session in sessions]

    def overlap(self, work: Callable[[], None]) -> None:
        """Call `work` at every future guess: before the guess, or while a GPU makes it."""
        self._meanwhile = work

    def close(self, session: int, *, keep: bool) -> None:
        """Forget a session that ended; `keep`: the conversation may continue. Unknown ids are ignored."""
        path = self._paths.pop(session, None)
        if path is not None:
            path.forget_guesses()
            self._cache.release(path, keep=keep and not self._failed)

    def _n_behind(self, path: DraftSession) -> int:
        n = len(path.tokens) - path.n_kv - 1
        return n if n >= self._most_rows else 0

    def _ready(self, session: int) -> DraftSession | None:
        """Return the session's path; None if its context is full or its last guess ends the text."""
        path = self._paths.get(session)
        if path is None or path.seq == NO_SEQ or len(path.tokens) >= self._backend.n_ctx:
            return None
        if path.tokens[-1] in self._backend.vocab.eog and path.n_ahead:
            return None
        return path

    def _has_room(self) -> bool:
        """Return True if the cache has room for one more guess of each path, after evictions if needed."""
        n = len(self._paths)
        if self._n_free < n:
            self._n_free = self._cache.n_free
            if self._n_free < n:
                return self._cache.make_room(n)
        self._n_free -= n
        return True

    def _evaluate(self, path: DraftSession, n: int) -> int:
        """Evaluate the path's next n tokens, or as many as fit one decode; return how many."""
        began, n, batch = self._clock(), min(n, self._backend.n_batch), Batch()
        self._cache.add(batch, path, n, int(n == 1))  # a single row has logits, as in the next decode
        self._backend.decode(batch)
        self._row_s.observe(max(0.0, self._clock() - began - self.td.value), n)
        return n

    def _fail(self, error: BackendError) -> None:
        logger.warning("the draft model failed and drafts no more: %s", error.message)
        self._failed = True

    def _extend(self, paths: Sequence[DraftSession], second: bool) -> dict[int, DraftGuess]:
        """Add a guess to each path, with the likeliest other token if `second`; return guesses by session."""
        batch = Batch(meanwhile=self._meanwhile)
        for path in paths:
            self._cache.add(batch, path, len(path.tokens) - path.n_kv, 1)
        guesses: dict[int, DraftGuess] = {}
        for path, row in zip(paths, self._backend.decode(batch), strict=True):
            guessed = guess(row, path.sampling, len(path.tokens) + path.n_dropped, second=second)
            path.add(guessed)
            if self._distributions:
                guessed = guessed._replace(drafted=distribution(row, path.sampling))
            guesses[path.id] = guessed
        return guesses
