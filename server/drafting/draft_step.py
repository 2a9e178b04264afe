"""One decode of a draft model, which a GPU may run while the drafter handles earlier guesses."""

from __future__ import annotations

from collections.abc import Callable

from server.drafting.branch import Branch
from server.drafting.draft_session import DraftSession
from server.llama.backend import Batch, Logits


class DraftStep:
    """The rows of one decode, and the paths and branches that get guesses from it."""

    def __init__(self, begun: float = 0.0) -> None:
        """Begin without rows. `begun`: when the previous logits arrived, in seconds of a drafter's clock."""
        self.begun = begun
        self.batch = Batch()
        # for each row of logits: the session, and the branch whose next guess the row gives (None: the guess
        # is for the session's path); paths first
        self.grown: list[tuple[DraftSession, Branch | None]] = []
        self.slots: set[int] = set()  # slots with rows
        self.behind: set[int] = set()  # slots that catch up: they have more than one token to evaluate
        self.n_paths = 0  # number of paths in `grown`
        self.is_timed = True  # its time is typical; False: started early, but a new plan would differ
        # waits for the logits of a decode that was started before messages were handled, and returns them
        self.logits: Callable[[], Logits] | None = None

    def drop_stale(self, logits: Logits) -> Logits:
        """Drop the paths that the lead's latest messages changed; return the logits of the other paths.

        Only for a decode that was started early. It has no rows of branches.
        """
        kept = [i for i, (session, _) in enumerate(self.grown) if not session.pending]
        self.grown = [self.grown[i] for i in kept]
        self.n_paths = len(kept)
        return logits[kept]

    def discard(self) -> None:
        """Discard a decode that was started early: its tokens will be evaluated again."""
        for session, _ in self.grown:
            session.n_kv = min(session.n_kv, len(session.tokens) - 1)
            session.has_new_tokens = True
