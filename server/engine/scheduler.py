"""Choose which rows of which sessions the next decode has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from server.engine.request import Exactness, Speculation
from server.engine.session import Session


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a step, and the rules by which it verifies guesses."""

    n_batch: int = 512  # maximum rows of one decode
    n_chunk: int = 64  # maximum prompt rows while a session decodes, so long prompts do not stall it
    draft_max: int = 8  # maximum drafted tokens per session and step
    leaves: int = 3  # maximum leaves of a session's tree; each needs a KV sequence
    stable_width: int = 8  # rows of every step of a width-stable session
    exactness: Exactness = "default"  # for requests that do not set it
    by_rejection: bool = False  # use the rule of rejection.py
    again: bool = False  # a wrong guess makes all rows of its session be evaluated again (checkpoints.py)
    # True: each sequence has its own KV cache; llama.cpp decodes sequences with consecutive numbers together
    streams: bool = False

    def is_stable(self, session: Session) -> bool:
        """Return True if the session must run alone: drafts or other sessions must not affect its logits."""
        return (session.request.speculation.exactness or self.exactness) == "width-stable"

    def bounds(self, session: Session) -> Speculation:
        """Return the request's speculation settings, with the session's exactness and salt filled in."""
        asked = session.request.speculation
        return replace(asked, exactness=asked.exactness or self.exactness, salt=session.request.salt)


@dataclass(slots=True)
class Work:
    """Rows for one session: its next n_pending tokens and, if all pending tokens fit, n_draft guesses."""

    session: Session
    n_pending: int
    completes: bool  # these are all pending tokens, so the next token can be drawn
    n_draft: int = 0

    @property
    def n_rows(self) -> int:
        """Return the number of rows without guesses."""
        return self.n_pending - 1 + self.session.n_rows


def plan(sessions: Sequence[Session], limits: Limits) -> list[Work]:
    """Plan rows for every decoding session, then for prompts; guesses share the rest of the batch.

    Args:
        sessions: The active sessions.
        limits: Limits of the step.
    """
    works: list[Work] = []
    decoding: list[Session] = []
    prompts: list[Session] = []
    left = limits.n_batch
    for session in sessions:
        if not session.decodes:
            prompts.append(session)
        elif not session.request.precompute:
            decoding.append(session)
    for i, session in enumerate(decoding):
        n_pending = 1 + session.n_again
        n = min(n_pending, max(1, left // (len(decoding) - i)))
        works.append(Work(session, n, n == n_pending))
        left -= n - 1 + session.n_rows
    if prompts:
        alone = not works and not any(session.request.precompute for session in sessions)
        more = _plan_prompts(prompts, left if alone else min(left, limits.n_chunk), limits.n_chunk)
        left -= sum(work.n_pending for work in more)
        works += more
    deciding = [work for work in works if work.completes and work.session.drafts]
    n_waiting = len(deciding)
    for work in deciding:
        if (n := min(_draft_max(work.session, limits), left // n_waiting)) > 0:
            work.n_draft = n
            left -= n
        n_waiting -= 1
    if limits.streams:
        works.sort(key=lambda work: work.session.seq)
    return works


def _plan_prompts(prompts: Sequence[Session], n_rows: int, n_reported: int) -> list[Work]:
    """Plan at most n_rows rows of prompts.

    The prompt admitted first gets at least half of the rows, and also the rows that the other prompts do not
    need. These prompts get the rest, the shortest one first.

    Args:
        prompts: Sessions in prefill, in order of admission.
        n_rows: Maximum rows of all prompts.
        n_reported: Maximum rows of a prompt all of whose rows need logits (Session.reports_prompt).
    """
    works: list[Work] = []
    others = sorted(prompts[1:], key=lambda other: other.n_to_evaluate)
    reserved = min(n_rows // 2, sum(other.n_to_evaluate for other in others))
    for session in (prompts[0], *others):
        n = min(session.n_to_evaluate - session.request.precompute, n_rows - reserved)
        if session.reports_prompt:
            n = min(n, n_reported)
        if session.stride:
            n_prompt = session.n_prompt - session.n_kv - session.n_dropped
            n = min(n, session.stride if session.strides else n_prompt)
        if session.n_kv < session.checkpoint_at:
            n = min(n, session.checkpoint_at - session.n_kv)
        if n > 0:
            n = session.with_whole_pictures(n)
            works.append(Work(session, n, n == session.n_pending))
        n_rows, reserved = n_rows - n, 0
    return works


def _draft_max(session: Session, limits: Limits) -> int:
    """Return the maximum guesses for the session.

    No guess is made for a position after the last token that may be committed. If a wrong guess means that
    all rows are evaluated again (limits.again), there are no guesses in two cases: many tokens are pending,
    or the evaluated tokens end within a picture, where no state can be saved.
    """
    asked, most = session.request.speculation, limits.draft_max
    if asked.n_max is not None:
        most = min(asked.n_max, most)
    if limits.again and (session.n_pending > 1 + limits.draft_max or session.in_picture):
        return 0
    if (asked.exactness or limits.exactness) == "width-stable":
        most = min(most, limits.stable_width - 1 if session.n_pending == 1 else 0)
    return min(most, session.n_left - 1)
