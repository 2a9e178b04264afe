"""Draft with a small model: several sessions per decode, each with a KV sequence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from server.drafting.branch import NO_SEQ
from server.drafting.draft_cache import DraftCache
from server.drafting.draft_session import DraftSession
from server.drafting.draft_step import DraftStep
from server.drafting.expansion import PATH_MIN, TD_WEIGHT, DecodeTimes, Expansion, Leaf, Slack
from server.drafting.guessing import NextToken, Rule
from server.errors import BackendError
from server.estimators import Smoothed
from server.llama.backend import Backend, Logits
from server.llama.shapes import UNKNOWN, Shapes

# Maximum rows of prompts in a step that several sessions share, in drafters and the lead (Limits.n_chunk).
# Half: a prompt of 2,000 tokens takes 63 steps instead of 32; twice: sessions that draft wait for twice the
# rows.
SHARED_ROWS = 64


class ModelDrafter:
    """A Drafter with a small model. Draws with the lead's sampling and noise, to guess what the lead draws.

    A closed session's sequence stays cached, and a session that continues it evaluates only new tokens.

    If there are free sequences, a session's guesses are a small tree: rows go to paths, and to branches at
    uncertain positions, to gain the most tokens per second (expansion.py). If a change of the batch's shape
    costs more than rows do, there are paths only.

    On a GPU, the decode of the paths' next tokens starts as soon as these are known; all other work is done
    while the GPU computes.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        path_min: float = PATH_MIN,
        n_branches: int = 0,
        shapes: Shapes = UNKNOWN,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin without sessions.

        Args:
            backend: The model.
            path_min: Probability below which a path gets no more guesses.
            n_branches: Sequences of the backend for branches; 0: paths only.
            shapes: Times of the model's decodes.
            clock: Returns the time in seconds.
        """
        self._backend = backend
        self._clock = clock
        self._times = DecodeTimes(shapes.steady)
        self._slack = Slack()
        self._cache = DraftCache(backend, 0 if shapes.padding_pays else n_branches)
        self._expansion = Expansion(path_min, min(backend.n_ctx, backend.n_cells), backend.vocab.eog)
        self.td = Smoothed(TD_WEIGHT)
        self.rule = Rule()
        self._has_messages: Callable[[], bool] = lambda: False
        self._starts_early = backend.overlaps and backend.can_trim
        self._paths_alone = True  # the next decode should have one row for each path, no other
        self._started: DraftStep | None = None

    def obstacle(self, session: DraftSession) -> str | None:
        limit = self._expansion.limit
        if len(session.tokens) >= limit:
            return f"it has reached the end of this model's context of {limit} tokens"
        if session.n_kv < session.n_committed:  # else there are only own guesses to evaluate
            pending, vocab = session.pending, self._backend.vocab
            if min(pending) < 0 or max(pending) >= vocab.size:
                return f"it has tokens outside this model's vocabulary of {vocab.size}"
        return None

    def wants(self, session: DraftSession) -> bool:
        if session.lost:
            return False
        return next(self._leaves_of(session), None) is not None

    def _leaves_of(self, session: DraftSession) -> Iterator[Leaf]:
        if not self._cache.slots.has_branches:
            return self._expansion.leaves(session, math.inf)
        floor = self._slack.floor(self.td.value, len(self._cache.held))
        return self._expansion.leaves(session, min(self._expansion.path_min, floor))

    def watch(self, has_messages: Callable[[], bool], wake: Callable[[], None]) -> None:
        self._has_messages = has_messages

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession] | None:
        began = self._clock()
        step, self._started = self._started or DraftStep(), None
        try:
            if step.batch:
                began, logits = step.begun, step.drop_stale(self._finish(step))
            else:
                self._plan_rows(step, sessions)
                if not step.batch:
                    return None
                logits = self._finish(step)
            decoded = self._clock()
            choices = self._choose_tokens(step, sessions, logits, decoded)
        except BackendError:
            self._cache.drop(step.slots)
            raise
        for (session, branch), choice in zip(step.grown, choices, strict=True):
            (branch or session).add(choice.guess(second=self._cache.slots.has_branches))
        if step.grown:
            self._times.guess_s.observe((self._clock() - decoded) / len(step.grown))
        if self._starts_early:
            self._check_plan(sessions)
        if not step.behind and step.n_paths and step.is_timed:  # no session is catching up
            self.td.observe((decoded if self._started else self._clock()) - began)
        return [session for session, _ in step.grown]

    def _choose_tokens(
        self, step: DraftStep, sessions: Sequence[DraftSession], logits: Logits, now: float
    ) -> list[NextToken]:
        """Return the guessed token for each element of step.grown.

        If only paths get guesses (no branches), also start the next decode, on a GPU.

        Args:
            step: The decode that made the logits.
            sessions: Sessions whose guesses are worth making.
            logits: One row for each element of step.grown.
            now: Time when the logits arrived, in seconds.
        """
        early = self._starts_early and self._paths_alone and step.n_paths == len(step.grown) == len(sessions)
        rows = logits.copy() if early else logits
        choices: list[NextToken] = []
        for (session, branch), row in zip(step.grown, rows, strict=True):
            position = (len(session.tokens) if branch is None else branch.end) + session.n_dropped
            choices.append(NextToken(row, session.sampling, position, likeliest=self.rule.likeliest))
        if early:
            self._start_next([session for session, _ in step.grown], choices, now)
        return choices

    # -- decodes that are started early

    def _start_next(self, paths: list[DraftSession], choices: Sequence[NextToken], now: float) -> None:
        """Start a decode of these paths' next tokens (`choices`), unless a path ends or a message waits.

        `now` is the time when the previous logits arrived, in seconds. Raises BackendError.
        """
        if self._has_messages() or not self._cache.make_room(len(paths)):
            return
        step = DraftStep()
        for session, choice in zip(paths, choices, strict=True):
            if not self._expansion.goes_on(session, choice.token):
                return
            step.batch.extend(self._cache.slots.seqs[session.seq], len(session.tokens), [choice.token], 1)
            step.grown.append((session, None))
            step.slots.add(session.seq)
        step.logits, step.begun = self._backend.start(step.batch), now
        self._started = step
        for session in paths:
            session.n_kv += 1

    def _check_plan(self, sessions: Sequence[DraftSession]) -> None:
        """Set _paths_alone: True if a plan made now has one row for each session's path, and no others."""
        chosen = self._best_leaves(sessions)
        n_paths = sum(leaf.branch is None and leaf.second is None for leaf in chosen)
        self._paths_alone = n_paths == len(chosen) == len(sessions)
        if self._started:
            self._started.is_timed = self._paths_alone

    def _finish(self, step: DraftStep) -> Logits:
        """Return the logits of the step's decode, which may have been started early. Raises BackendError."""
        return step.logits() if step.logits else self._backend.decode(step.batch)

    def _best_leaves(self, sessions: Sequence[DraftSession]) -> list[Leaf]:
        """Return the leaves that get a row in the next decode."""
        return self._times.best(leaf for session in sessions for leaf in self._leaves_of(session))

    def close(self, session: DraftSession, *, keep: bool) -> None:
        if self._started:
            self._finish(self._started)
            self._started.discard()
            self._started = None
        self._learn_from_commits(session)
        session.learned_at = 0, 0.0
        self._cache.release(session, keep=keep)

    # -- a step

    def _plan_rows(self, step: DraftStep, sessions: Sequence[DraftSession]) -> None:
        """Add rows to the step for as many sessions as fit into one decode.

        Sessions with the fewest tokens to evaluate come first, sessions without a sequence last.
        """
        has_new_tokens = [session for session in self._cache.held.values() if session.has_new_tokens]
        for session in has_new_tokens:
            self._learn_from_commits(session)
            self._cache.trim(session)
        if has_new_tokens:
            self._cache.free_branches()
        chosen = self._best_leaves(sessions)
        paths = [leaf.session for leaf in chosen if not leaf.branch and not leaf.second]
        for session in sorted(paths, key=_n_to_evaluate):
            if self._cache.admit(session, step.slots) and not self._add_path(step, session):
                break
        step.n_paths = len(step.grown)
        for leaf in chosen:
            if (leaf.branch or leaf.second) and leaf.session.seq not in step.behind:
                self._add_branch(step, leaf)

    def _add_path(self, step: DraftStep, session: DraftSession) -> bool:
        """Add rows for the session's first pending tokens, as many as fit; return False if none does."""
        pending = session.pending
        is_shared = step.grown or len(self._cache.held) > 1  # another session may get work soon
        most = min(SHARED_ROWS, self._backend.n_batch) if is_shared else self._backend.n_batch
        n = min(len(pending), most - len(step.batch))
        if n < 1:
            return False
        complete = n == len(pending)
        if len(pending) > 1:
            step.behind.add(session.seq)
        self._cache.add(step.batch, session, n, int(complete))
        step.slots.add(session.seq)
        if complete:
            step.grown.append((session, None))
        return True

    def _add_branch(self, step: DraftStep, leaf: Leaf) -> None:
        """Add a row for the next guess of the leaf's branch.

        If the leaf begins a new branch, this needs a sequence; without one, nothing is added.
        """
        branch = leaf.branch
        if leaf.second is not None:
            branch = self._cache.begin(leaf.session, leaf.fork, leaf.second, leaf.gain)
        if branch is None or branch.seq == NO_SEQ or len(step.batch) == self._backend.n_batch:
            return
        self._cache.add_branch(step.batch, branch)
        step.slots.add(branch.seq)
        step.grown.append((leaf.session, branch))

    def _learn_from_commits(self, session: DraftSession) -> None:
        """Learn from the session's newly committed tokens."""
        for guessed, token in session.evidence:
            self.rule.judge(guessed, token)
        session.evidence.clear()
        before, at = session.learned_at
        if before != session.n_committed:
            now = self._clock()
            session.learned_at = session.n_committed, now
            if before:
                self._slack.committed(session.n_mistakes, now - at)
            session.n_mistakes = 0
        session.has_new_tokens = False


def _n_to_evaluate(session: DraftSession) -> float:
    return math.inf if session.seq == NO_SEQ else len(session.tokens) - session.n_kv
