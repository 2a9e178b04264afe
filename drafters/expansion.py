"""The next guess of a session's small tree: best first, by path probability. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from drafters.branch import NO_SEQ, Branch
from drafters.draft_session import DraftSession

MOST_BRANCHES = 2  # of one session: with the path as many leaves as a lead verifies. Twice: two are in vain
BRANCH_LENGTH = 8  # guesses: enough until the drafter hears of a mistake. Half: fewer are ready then
PATH_FIRST = 4  # guesses of a likely path before branches get rows: assumed. Twice: they come 4 guesses later
UNSURE = 0.5  # the probability from which a path is likely: of four guesses of 0.84 each. 0.25: of 0.71


@dataclass(frozen=True, slots=True)
class Expansion:
    """path_min: least probability of a path that grows; limit: tokens of a sequence; eog: tokens that end a
    text."""

    path_min: float
    limit: int
    eog: frozenset[int]

    def wants_path(self, session: DraftSession) -> bool:
        return (
            session.n_ahead < session.max_ahead
            and session.tokens[-1] not in self.eog
            and session.score >= self.path_min
        )

    def wants_branches(self, session: DraftSession) -> bool:
        """Whether a branch is worth a guess."""
        if session.seq == NO_SEQ:
            return False
        return bool(self._growable(session, self.path_min)) or self._fork(session, self.path_min) is not None

    def next(self, session: DraftSession) -> tuple[list[Branch], int | None]:
        """The branches that get a row in the next step, and where another one begins, None: nowhere. Those
        likelier than the path's end once the path is well ahead or doubtful; all if the path has ended."""
        floor = self.path_min
        if self.wants_path(session):
            floor = max(floor, session.score)
            if session.n_ahead < PATH_FIRST and floor >= UNSURE:
                return [], None
        return self._growable(session, floor), self._fork(session, floor)

    def can_grow(self, session: DraftSession, branch: Branch) -> bool:
        return (
            branch.seq != NO_SEQ
            and len(branch.guesses) < BRANCH_LENGTH
            and branch.end < min(session.n_committed + session.max_ahead, self.limit)
            and branch.guesses[-1].token not in self.eog
        )

    def _growable(self, session: DraftSession, floor: float) -> list[Branch]:
        return [b for b in session.branches if self.can_grow(session, b) and session.score_of(b) >= floor]

    def _fork(self, session: DraftSession, floor: float) -> int | None:
        if len(session.branches) >= MOST_BRANCHES:
            return None
        best = session.best_second()
        return best[0] if best and best[1] >= floor and best[0] <= session.n_kv else None
