"""Draft with the target's own prediction block, or a head trained for it.

A guess costs almost nothing, so guesses can be made after every step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.engine.proposer import Ask, OpenedSession
from server.errors import BackendError
from server.estimators import Median
from server.llama.backend import Batch, Hidden
from server.llama.with_block import Path, WithBlock
from server.sampling.draft_token import DraftGuess, guess
from server.sampling.draw import distribution
from server.speculation.shape_times import SETTLING
from server.speculation.sources.draft_model import NO_GUESS_LIMIT
from server.speculation.step_times import LATEST

logger = logging.getLogger("duo.drafters")

# Maximum unread tokens that a first guess evaluates itself. More would take 1.5 to 2.5 ms then, but take only
# 0.2 ms during the target's decode (8B Q8_0, one H100, 17 to 33 tokens). Half: more often a reply has no
# guess in one step; twice: more often a first guess takes 1.5 ms longer
FREE_BACKLOG = 8
REHEARSED, ON_GPU = (32, 1), (32, 2, 3, 4, 1)
"""Rows of rehearsed decodes: those of a short prompt, and of steps that verify few guesses.

A GPU's first decode with each number of rows is slow. Without rehearsals, guesses would seem slow.
"""


@dataclass(slots=True)
class _BlockPath:
    """One session's guesses in this step."""

    session: OpenedSession
    seq: int
    token: int  # last guess, or last committed token
    # the first guess also evaluates what was committed since the block last guessed, such as a prompt
    late: bool
    n_guessed: int = 0
    hidden: Hidden | None = None  # hidden row of the last guess


class BlockDraft:
    """Guesses with the target's prediction block or a head, from the target's latest hidden row (state).

    Guesses are drawn with the lead's sampling parameters and noise. Implements InlineModel.
    """

    def __init__(
        self,
        model: WithBlock,
        *,
        most: int = 0,
        distributions: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin without sessions.

        Args:
            model: The target with its block.
            most: Maximum guesses of a session in one step; 0: as many as the block can make.
            distributions: True: return each guess with the distribution that it was sampled from.
            clock: Returns the time in seconds.
        """
        self._model = model
        self.source = model.block.source
        self.most = min(most or NO_GUESS_LIMIT, model.block.n_depths or NO_GUESS_LIMIT)
        self.beside = model.overlaps
        self._distributions = distributions
        self._clock = clock
        self._paths: dict[int, _BlockPath] = {}
        self._meanwhile: Callable[[], None] | None = None
        self.td = Median(LATEST)

    def rehearse(self) -> None:
        path = Path(0, 0, None)
        try:
            for n_rows in ON_GPU if self._model.overlaps else REHEARSED:
                self._model.trim(0, 0)
                rows = Batch()
                rows.extend(0, 0, [path.token] * min(n_rows, self._model.n_batch), 1)
                self._model.decode(rows)
                _, hidden = self._model.guess([path], 0)
                if self._model.block.n_depths != 1:
                    self._model.guess([path._replace(hidden=hidden[0])], 1)
                self._model.trim(0, 1)
            for i in range(SETTLING + LATEST):
                began = self._clock()
                self._model.guess([path], 0)
                if i >= SETTLING:
                    self.td.observe(self._clock() - began)
                self._model.trim(0, 1)
        except BackendError as error:
            logger.warning("the model's prediction block is not used: %s", error.message)
        self._model.trim(0, 0)

    def follow(self, session: OpenedSession, ask: Ask) -> None:
        """Begin a path if the session has one pending token.

        If several tokens are pending, the hidden row to guess from does not exist before the step's decode.
        """
        before = self._paths.pop(session.id, None)
        if ask.n_pending == 1 and not self._model.failed:
            late = before is None or not before.n_guessed
            self._paths[session.id] = _BlockPath(session, ask.seq, session.tokens[-1], late)

    def behind(self, session: int) -> int:
        """Return the number of tokens that the block should evaluate during the target's next decode.

        Return 0 if they are few: the first guess evaluates them then.
        """
        path = self._paths.get(session)
        if not self.beside or path is None or not path.late:
            return 0
        n = self._model.n_late(path.seq)
        return n if n > FREE_BACKLOG else 0

    def behind_s(self, session: int) -> float:
        return self.td.value

    def read(self, session: int, most: int) -> int:
        """Let the block catch up during the target's next decode; return 0: it evaluates nothing now.

        `most` is ignored. The block never lacks more than one chunk of a prompt, since it evaluates each
        chunk while the target decodes the next one.
        """
        if path := self._paths.get(session):
            self._model.read(path.seq)
        return 0

    def read_ahead(self, session: OpenedSession, most: int) -> int:
        """Evaluate nothing, and return 0: the block evaluates a prompt during the target's decodes anyway."""
        return 0

    def guess(self, sessions: Sequence[int], *, second: bool, timed: bool = True) -> list[DraftGuess | None]:
        if self._meanwhile is not None and timed:
            self._meanwhile()
        began = self._clock()
        paths = [path for session in sessions if (path := self._ready(session))]
        if not paths:
            return [None] * len(sessions)
        try:
            rows = [Path(path.seq, path.token, path.hidden) for path in paths]
            logits, hidden = self._model.guess(rows, paths[0].n_guessed)
        except BackendError as error:
            logger.warning("%s failed and drafts no more: %s", self._model.block.what, error.message)
            self._paths = {}
            return [None] * len(sessions)
        caught_up = any(path.late and not path.n_guessed for path in paths)
        guesses: dict[int, DraftGuess] = {}
        for path, row, row_hidden in zip(paths, logits, hidden, strict=True):
            sampling = path.session.sampling
            position = len(path.session.tokens) + path.n_guessed + path.session.n_dropped
            guessed = guess(row, sampling, position, second=second)
            if self._distributions:
                guessed = guessed._replace(drafted=distribution(row, sampling))
            guesses[path.session.id] = guessed
            path.token, path.hidden = guessed.token, row_hidden
            path.n_guessed += 1
        if timed and not caught_up:
            self.td.observe(self._clock() - began)
        return [guesses.get(session) for session in sessions]

    def overlap(self, work: Callable[[], None]) -> None:
        self._meanwhile = work

    def close(self, session: int, *, keep: bool) -> None:
        self._paths.pop(session, None)

    def _ready(self, session: int) -> _BlockPath | None:
        """Return the session's path; None if the context is full or the last guess ends the text."""
        path = self._paths.get(session)
        if path is None or (path.n_guessed and path.token in self._model.vocab.eog):
            return None
        if len(path.session.tokens) + path.n_guessed >= self._model.n_ctx:
            return None
        return path
