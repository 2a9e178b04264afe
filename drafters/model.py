"""Guesses from a small model: several sessions to a decode, each with a sequence of the KV cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from drafters.branch import NO_SEQ, Branch
from drafters.breadth import Breadth
from drafters.draft_session import DraftSession
from drafters.drafter import PATH_MIN, TD_WEIGHT
from drafters.expansion import BRANCH_LENGTH, MOST_BRANCHES, Expansion
from drafters.guessing import Rule, guess
from server.errors import BackendError
from server.estimators import Smoothed
from server.llama.backend import Backend, Batch, Logits
from server.speculation.sources.draft_slots import DraftSlots

# Rows of a step while some session drafts: another one's long prompt must not hold it up. Half: a prompt of
# 2,000 tokens takes 63 steps instead of 32; twice: those who draft wait for twice the rows.
SHARED_ROWS = 64
MARGIN = 32  # cells left free beside a branch, for paths to grow: assumed. Twice: a full cache has fewer
PAD = 0  # the token of padding rows


@dataclass(slots=True)
class _DraftStep:
    """One decode. grown: whose next guesses its logits give, in the order of the rows."""

    batch: Batch
    grown: list[tuple[DraftSession, Branch | None]]
    slots: set[int]  # with rows
    behind: set[int]  # with more to evaluate than the last guess
    n_paths: int = 0  # of grown: paths come first


class ModelDrafter:
    """Implements Drafter. Draws with the lead's sampling and noise, so it guesses the draw itself.

    A closed session's sequence stays cached, and a session that continues it evaluates only new tokens. Each
    session with a sequence reserves cells for all its tokens; one that outgrows the cache gives it up.

    Where sequences are left, the guesses for a session are a small tree: rows go to the path, and to branches
    at its doubtful positions once these are likelier than the path's end. Where a change of shape costs more
    than rows do, every decode has the rows of a path with all its branches, each of another sequence.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        path_min: float = PATH_MIN,
        n_branches: int = 0,
        steady: Mapping[int, float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """n_branches: sequences of the backend for branches; 0: paths only. steady: seconds of a decode by
        rows, where a change of shape is to be avoided (breadth.py); takes MOST_BRANCHES more sequences."""
        self._backend = backend
        self._clock = clock
        self._breadth = Breadth(steady or {})
        self._sequences = DraftSlots(backend, n_branches, MOST_BRANCHES if steady else 0)
        self._held: dict[int, DraftSession] = {}  # by slot
        self._branches: dict[int, Branch] = {}  # by slot
        self._expansion = Expansion(path_min, min(backend.n_ctx, backend.n_cells), backend.vocab.eog)
        self.td = Smoothed(TD_WEIGHT)
        self._meanwhile: Callable[[], None] | None = None
        self.rule = Rule()

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
        if self._expansion.wants_path(session):
            return True
        return self._branches_out and self._expansion.wants_branches(session)

    @property
    def _branches_out(self) -> bool:
        return self._sequences.has_branches and self._breadth.branches

    def overlap(self, work: Callable[[], None]) -> bool:
        if self._backend.overlaps:
            self._meanwhile = work
        return self._backend.overlaps

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession] | None:
        began = self._clock()
        step = _DraftStep(Batch([], [], [], [], {}), [], set(), set())
        try:
            self._plan(step, sessions)
            if not step.batch:
                return None
            logits = self._decode(step)
        except BackendError:
            self._drop(step.slots)
            raise
        likeliest, second = self.rule.likeliest, self._branches_out
        for (session, branch), row in zip(step.grown, logits[: len(step.grown)], strict=True):
            position = len(session.tokens) if branch is None else branch.end
            position += session.n_dropped
            guessed = guess(row, session.sampling, position, likeliest=likeliest, second=second)
            (branch or session).add(guessed)
        if not step.behind and step.n_paths:  # no catching up in this step
            self.td.observe(self._clock() - began)
        return [session for session, _ in step.grown]

    def _decode(self, step: _DraftStep) -> Logits:
        """Rows of logits, first those of step.grown."""
        step.batch.meanwhile = self._meanwhile
        scratch = self._sequences.scratch
        n_pad = -len(step.batch) % self._breadth.rows if len(step.batch) == len(step.grown) else 0
        if not n_pad:
            return self._backend.decode(step.batch)
        for seq in scratch[:n_pad]:
            step.batch.extend(seq, 0, [PAD], 1)
        try:
            return self._backend.decode(step.batch)
        finally:
            for seq in scratch[:n_pad]:
                self._backend.trim(seq, 0)

    def close(self, session: DraftSession, *, keep: bool) -> None:
        self._settle(session)
        session.settled = 0, 0.0
        session.branches = []
        self._free_branches()
        if session.seq == NO_SEQ:
            return
        del self._held[session.seq]
        self._sequences.release(session.seq, session.tokens, session.n_kv if keep else 0)
        session.seq, session.n_kv = NO_SEQ, 0

    # -- a step

    def _plan(self, step: _DraftStep, sessions: Sequence[DraftSession]) -> None:
        """Rows for as many sessions as fit in one decode: first those with the least to evaluate, last those
        without a sequence."""
        told = [session for session in self._held.values() if session.told]
        for session in told:
            self._settle(session)
            session.n_kv = self._sequences.shrink(session.seq, session.n_kv)  # guesses that were wrong
        if told:
            self._free_branches()
        for session in sorted(sessions, key=_n_to_evaluate):
            wanted = self._expansion.wants_path(session)
            if wanted and self._admit(session, step.slots) and not self._add_path(step, session):
                break
        step.n_paths = len(step.grown)
        if self._branches_out:
            for session in sessions:
                if session.seq not in step.behind:
                    self._add_branches(step, session)

    def _add_path(self, step: _DraftStep, session: DraftSession) -> bool:
        """Rows for the session's pending tokens, or the first of them. False if no row is left."""
        pending = session.pending
        most = min(SHARED_ROWS, self._backend.n_batch) if step.grown else self._backend.n_batch
        n = min(len(pending), most - len(step.batch))
        if n < 1:
            return False
        complete = n == len(pending)
        if len(pending) > 1:
            step.behind.add(session.seq)
        step.batch.extend(self._sequences.seq(session.seq), session.n_kv, pending[:n], int(complete))
        step.slots.add(session.seq)
        session.n_kv += n
        if complete:
            step.grown.append((session, None))
        return True

    def _add_branches(self, step: _DraftStep, session: DraftSession) -> None:
        """Rows for branches that grow, and a sequence for one that begins."""
        if session.seq == NO_SEQ:
            return
        growing, fork = self._expansion.next(session)
        if fork is not None and self._sequences.unforked and self._make_room(BRANCH_LENGTH + MARGIN):
            branch = session.branch(fork)
            branch.seq = self._sequences.fork(session.seq, fork)
            self._branches[branch.seq] = branch
            if self._expansion.can_grow(session, branch):
                growing.append(branch)
        for branch in growing:
            pending = branch.pending
            if len(step.batch) + len(pending) > self._backend.n_batch:
                return
            step.batch.extend(self._sequences.seq(branch.seq), branch.n_kv, pending, 1)
            step.slots.add(branch.seq)
            branch.n_kv += len(pending)
            step.grown.append((session, branch))

    # -- sequences and cells

    def _admit(self, session: DraftSession, planned: set[int]) -> bool:
        """Give the session a slot and cells for all its tokens; ends branches and evicts closed sessions for
        it. planned: slots with rows in this step. False if there is no room."""
        if session.seq != NO_SEQ and self._make_room(0):
            return True
        needed = len(session.tokens) if session.seq == NO_SEQ else 0
        if self._spare(branches=False) < needed:
            self.close(session, keep=True)
            return False
        if self._spare() < needed:
            self._end_branches()
        if session.seq == NO_SEQ:
            evaluated = [other for slot, other in self._held.items() if slot not in planned]
            busy = {other.seq: other.tokens[: other.n_kv] for other in evaluated}
            taken = self._sequences.take(session.tokens, session.salt, busy)
            if taken is None:
                return False
            session.seq, session.n_kv = taken
            self._held[session.seq] = session
        assert self._make_room(0), "cells without an owner"
        return True

    def _spare(self, *, branches: bool = True) -> int:
        """Cells that neither sessions nor branches (if they count) have reserved."""
        reserved = sum([len(session.tokens) for session in self._held.values()])
        n_own = self._backend.n_cells - len(self._sequences.scratch)
        return n_own - reserved - branches * BRANCH_LENGTH * len(self._branches)

    def _make_room(self, n: int) -> bool:
        """Evict closed sessions until n cells are free. False if that is not enough."""
        return self._sequences.limit_idle(self._spare() - n)

    def _settle(self, session: DraftSession) -> None:
        """Learn from commits, and put a branch that came true in the path's place."""
        for guessed, token in session.evidence:
            self.rule.judge(guessed, token)
        session.evidence.clear()
        before, at = session.settled
        if before != session.n_committed:
            now = self._clock()
            session.settled = session.n_committed, now
            counts, session.counts = session.counts, (0, 0, 0)
            if before:
                self._breadth.committed(*counts, now - at)
        session.told = False
        if session.taken is not None:
            self._sequences.exchange(session.seq, session.taken.seq)
            session.taken = None

    def _free_branches(self) -> None:
        """Free the slots of branches that no session has any more."""
        alive = {id(branch) for session in self._held.values() for branch in session.all_branches}
        for slot in [slot for slot, branch in self._branches.items() if id(branch) not in alive]:
            self._sequences.free(slot)
            del self._branches[slot]

    def _end_branches(self) -> None:
        for session in self._held.values():
            session.branches = []
        self._free_branches()

    def _drop(self, slots: Iterable[int]) -> None:
        """Empty slots whose contents are unknown after a failed decode; their sessions begin anew."""
        self._end_branches()
        for slot in slots:
            session = self._held.pop(slot, None)
            self._sequences.forget(slot)
            if session is not None:
                self._sequences.release(slot, [], 0)
                session.seq, session.n_kv = NO_SEQ, 0


def _n_to_evaluate(session: DraftSession) -> float:
    return math.inf if session.seq == NO_SEQ else len(session.tokens) - session.n_kv
