"""The seam to whatever guesses ahead: drafters over the bus, or nothing. Called by the engine thread only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server.sampling.params import SamplingParams

ROOT = -1
"""The parent of a proposal's first nodes: the last committed token."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A small tree of guessed tokens. parents[i] < i or ROOT; siblings differ in token; sources[i] names
    the drafter that guessed tokens[i]."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, parent: int, token: int) -> int | None:
        """The index of the node with this token below this parent."""
        for i, (p, t) in enumerate(zip(self.parents, self.tokens, strict=True)):
            if p == parent and t == token:
                return i
        return None


NOTHING = Proposal()


class Proposer(Protocol):
    """Never blocks. What it proposes may be stale or wrong: verification decides."""

    def drain(self) -> None:
        """Take in what arrived since the last step."""
        ...

    def open(self, session: int, tokens: Sequence[int], sampling: SamplingParams) -> None:
        """A session begins. `tokens` is the engine's own list and grows as tokens are committed."""
        ...

    def propose(self, session: int, limit: int) -> Proposal:
        """At most `limit` guesses for what follows the committed tokens, a linear chain."""
        ...

    def committed(self, session: int, n: int, proposal: Proposal, accepted: Sequence[int]) -> None:
        """The last n tokens of the session's list are new. They were verified together with `proposal`, of
        which the nodes with indices `accepted` were right."""
        ...

    def close(self, session: int, *, keep: bool) -> None:
        """The session ended. keep: the conversation may go on."""
        ...

    def idle(self) -> bool:
        """Whether no session is open (for check())."""
        ...


class NoProposer:
    """A server without drafters."""

    def drain(self) -> None:
        pass

    def open(self, session: int, tokens: Sequence[int], sampling: SamplingParams) -> None:
        pass

    def propose(self, session: int, limit: int) -> Proposal:
        return NOTHING

    def committed(self, session: int, n: int, proposal: Proposal, accepted: Sequence[int]) -> None:
        pass

    def close(self, session: int, *, keep: bool) -> None:
        pass

    def idle(self) -> bool:
        return True
