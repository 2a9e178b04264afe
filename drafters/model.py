"""Guesses from a small model: several sessions to a decode, each with a sequence of the KV cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from drafters.branch import NO_SEQ, Branch
from drafters.draft_session import DraftSession
from drafters.drafter import PATH_MIN, TD_WEIGHT
from drafters.expansion import DecodeTimes, Expansion, Leaf, Slack
from drafters.guessing import NextToken, Rule
from drafters.started_decode import StartedDecode
from server.errors import BackendError
from server.estimators import Smoothed
from server.llama.backend import Backend, Batch, Logits
from server.llama.shapes import UNKNOWN, Shapes
from server.speculation.sources.draft_slots import DraftSlots

# Rows of a step while some session drafts: another one's long prompt must not hold it up. Half: a prompt of
# 2,000 tokens takes 63 steps instead of 32; twice: those who draft wait for twice the rows.
SHARED_ROWS = 64
# Cells reserved for a branch, few of which have more guesses: assumed. Half: a full cache fails sooner
BRANCH_LENGTH = 8
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

    Where sequences are left, the guesses for a session are a small tree: rows go to paths, and to branches at
    their doubtful positions, where they bring the most tokens per second (expansion.py). Where a change of
    shape costs more than rows do, decodes are padded, in sequences of their own.

    Where a GPU decodes, it begins with the next token of paths as soon as that is known, so that all other
    work is done while it computes.
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
        """n_branches: sequences of the backend for branches; 0: paths only. shapes: of its decodes; where
        padding pays, as many sequences more as the widest of these has rows beyond the first."""
        self._backend = backend
        self._clock = clock
        self._times = DecodeTimes(shapes.steady, one_shape=shapes.padding_pays)
        self._slack = Slack()
        self._sequences = DraftSlots(backend, n_branches, self._times.width - 1)
        self._held: dict[int, DraftSession] = {}  # by slot
        self._branches: dict[int, Branch] = {}  # by slot
        self._expansion = Expansion(path_min, min(backend.n_ctx, backend.n_cells), backend.vocab.eog)
        self.td = Smoothed(TD_WEIGHT)
        self.rule = Rule()
        self._news: Callable[[], bool] = lambda: False
        self._starts_early = backend.overlaps and backend.can_trim
        self._paths_alone = True  # one row for each session's path is what pays next
        self._started: StartedDecode | None = None

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
        return next(self._leaves(session), None) is not None

    def _leaves(self, session: DraftSession) -> Iterator[Leaf]:
        if not self._sequences.has_branches:
            return self._expansion.leaves(session, math.inf)
        floor = self._slack.floor(self.td.value, len(self._held))
        return self._expansion.leaves(session, min(self._expansion.path_min, floor))

    def watch(self, news: Callable[[], bool]) -> None:
        self._news = news

    def advance(self, sessions: Sequence[DraftSession]) -> list[DraftSession] | None:
        began = self._clock()
        step = _DraftStep(Batch([], [], [], [], {}), [], set(), set())
        started, self._started = self._started, None
        try:
            if started is not None:
                began = started.begun
                paths, logits = started.finish()
                step.grown += [(session, None) for session in paths]
                step.n_paths, step.slots = len(paths), {session.seq for session in paths}
            else:
                self._plan(step, sessions)
                if not step.batch:
                    return None
                logits = self._decode(step)
            decoded = self._clock()
            choices = self._choose(step, sessions, logits, decoded)
        except BackendError:
            self._drop(step.slots)
            raise
        for (session, branch), choice in zip(step.grown, choices, strict=True):
            (branch or session).add(choice.guess(second=self._sequences.has_branches))
        if step.grown:
            self._times.guess_s.observe((self._clock() - decoded) / len(step.grown))
        if not step.behind and step.n_paths and (started is None or started.timed):  # no catching up
            self.td.observe((decoded if self._started else self._clock()) - began)
        if self._starts_early:
            self._look_ahead(sessions)
        return [session for session, _ in step.grown]

    def _choose(
        self, step: _DraftStep, sessions: Sequence[DraftSession], logits: Logits, now: float
    ) -> list[NextToken]:
        """The tokens of step.grown, with the next decode under way if it is for these paths alone."""
        early = self._starts_early and self._paths_alone and step.n_paths == len(step.grown) == len(sessions)
        rows = logits[: len(step.grown)]
        choices: list[NextToken] = []
        for (session, branch), row in zip(step.grown, rows.copy() if early else rows, strict=True):
            position = (len(session.tokens) if branch is None else branch.end) + session.n_dropped
            choices.append(NextToken(row, session.sampling, position, likeliest=self.rule.likeliest))
        if early:
            self._start_next([session for session, _ in step.grown], choices, now)
        return choices

    # -- decodes that are started early

    def _start_next(self, paths: list[DraftSession], choices: Sequence[NextToken], now: float) -> None:
        """Begin with the next token of all these paths, if none of them ends and no message waits. Raises
        BackendError."""
        if self._news() or not self._make_room(len(paths)):
            return
        batch = Batch()
        for session, choice in zip(paths, choices, strict=True):
            if not self._expansion.goes_on(session, choice.token):
                return
            batch.extend(self._sequences.seq(session.seq), len(session.tokens), [choice.token], 1)
        self._started = StartedDecode(paths, self._backend.start(batch), now)
        for session in paths:
            session.n_kv += 1

    def _look_ahead(self, sessions: Sequence[DraftSession]) -> None:
        """Find out whether a plan made now would be one row for each path, as the started decode is."""
        chosen = self._times.best(leaf for session in sessions for leaf in self._leaves(session))
        paths = [leaf for leaf in chosen if not leaf.branch and not leaf.second]
        self._paths_alone = len(paths) == len(chosen) == len(sessions) and self._times.width == 1
        if self._started:
            self._started.timed = self._paths_alone

    def _decode(self, step: _DraftStep) -> Logits:
        """Rows of logits, first those of step.grown."""
        scratch = self._sequences.scratch
        n_pad = -len(step.batch) % self._times.width if len(step.batch) == len(step.grown) else 0
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
        if self._started:
            self._started.discard()
            self._started = None
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
        chosen = self._times.best(leaf for session in sessions for leaf in self._leaves(session))
        paths = [leaf.session for leaf in chosen if not leaf.branch and not leaf.second]
        for session in sorted(paths, key=_n_to_evaluate):
            if self._admit(session, step.slots) and not self._add_path(step, session):
                break
        step.n_paths = len(step.grown)
        for leaf in chosen:
            if (leaf.branch or leaf.second) and leaf.session.seq not in step.behind:
                self._add_branch(step, leaf)

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

    def _add_branch(self, step: _DraftStep, leaf: Leaf) -> None:
        """A row for a branch that grows, or begins if there is a sequence for it."""
        branch = leaf.branch or self._begin(leaf)
        if branch is None or branch.seq == NO_SEQ or len(step.batch) == self._backend.n_batch:
            return
        step.batch.extend(self._sequences.seq(branch.seq), branch.n_kv, branch.pending, 1)
        step.slots.add(branch.seq)
        branch.n_kv = branch.end
        step.grown.append((leaf.session, branch))

    # -- sequences and cells

    def _begin(self, leaf: Leaf) -> Branch | None:
        """The branch that the leaf says, in a free sequence or that of a less likely one, whose guesses stay.
        None where there is no room."""
        if leaf.session.seq == NO_SEQ or leaf.second is None:
            return None
        if not self._sequences.unforked:
            held = [(s.score_of(b), b) for s in self._held.values() for b in s.branches if b.seq != NO_SEQ]
            least, other = min(held, key=itemgetter(0), default=(math.inf, None))
            if other is None or least >= leaf.gain:
                return None
            self._free_branch(other.seq)
            other.seq, other.n_kv = NO_SEQ, other.fork
        if not self._make_room(BRANCH_LENGTH + MARGIN):
            return None
        branch = leaf.session.branch(leaf.fork, leaf.second)
        branch.seq = self._sequences.fork(leaf.session.seq, leaf.fork)
        self._branches[branch.seq] = branch
        return branch

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
            busy = {other.seq: (other.tokens, other.n_kv) for other in evaluated}
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
            if before:
                self._slack.committed(session.n_mistakes, now - at)
            session.n_mistakes = 0
        session.told = False
        if session.taken is not None:
            self._sequences.exchange(session.seq, session.taken.seq)
            session.taken = None

    def _free_branches(self) -> None:
        """Free the slots of branches that no session has any more."""
        alive = {id(branch) for session in self._held.values() for branch in session.all_branches}
        for slot in [slot for slot, branch in self._branches.items() if id(branch) not in alive]:
            self._free_branch(slot)

    def _free_branch(self, slot: int) -> None:
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
