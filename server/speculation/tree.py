"""Guesses past the committed tokens of one session, merged from all drafters into one scored tree.

Every place in the tree is known by its chain hash, so that a draft may continue the committed tokens, an
earlier guess, or a state the lead has moved on from: what still agrees with the committed tokens is grafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from server.engine.proposer import NOTHING, ROOT, Proposal
from server.speculation.messages import Draft, chain_next

MAX_NODES = 512  # of one tree: a drafter that floods is cut off here

Grafted: TypeAlias = Literal["fresh", "late", "stale", "full"]


@dataclass(slots=True)
class _Node:
    token: int
    position: int  # index in the sequence of the token after this one
    chain: int
    score: float  # path probability from the root at the time of grafting
    source: str
    children: dict[int, _Node] = field(default_factory=dict[int, "_Node"])


class ScoredTree:
    """One session's tree. Not thread-safe; nodes carry the target's token ids only."""

    def __init__(self, position: int, chain: int) -> None:
        """The first `position` tokens of the session are committed, with this chain hash after them."""
        self._start = position
        self._chains = [chain]  # after start, start + 1, … committed tokens
        self._committed: list[int] = []
        self._root = _Node(ROOT, position, chain, 1.0, "")
        self._places = {chain: self._root}

    @property
    def position(self) -> int:
        return self._root.position

    @property
    def chain(self) -> int:
        return self._root.chain

    def graft(self, draft: Draft) -> Grafted:
        """Add what a draft says about uncommitted positions.

        'fresh': its base is in the tree; 'late': its base is behind, its remainder was kept or is already
        committed; 'stale': it disagrees with what was committed, or its base is unknown; 'full': cut off.
        """
        if draft.base < self.position:
            return self._graft_late(draft)
        place = self._places.get(draft.chain)
        if place is None or place.position != draft.base:
            return "stale"
        places: list[_Node | None] = []
        for i in range(len(draft.tokens)):
            parent = place if draft.parents[i] == ROOT else places[draft.parents[i]]
            places.append(self._add(parent, draft, i))
        return "full" if None in places else "fresh"

    def _graft_late(self, draft: Draft) -> Grafted:
        """Walk the draft along the committed tokens; graft below the root what agrees up to there."""
        at = draft.base - self._start
        if at < 0 or self._chains[at] != draft.chain:
            return "stale"
        agreed: list[int | _Node | None] = []  # a committed position, a node of the tree, or neither
        for i, token in enumerate(draft.tokens):
            parent = draft.base if draft.parents[i] == ROOT else agreed[draft.parents[i]]
            if isinstance(parent, int) and parent < self.position:
                agrees = self._committed[parent - self._start] == token
                agreed.append(parent + 1 if agrees else None)
            else:
                agreed.append(self._add(self._root if isinstance(parent, int) else parent, draft, i))
        return "late" if any(a is not None for a in agreed) else "stale"

    def _add(self, parent: _Node | None, draft: Draft, i: int) -> _Node | None:
        if parent is None:
            return None
        token, score = draft.tokens[i], parent.score * draft.confidences[i] / 255
        node = parent.children.get(token)
        if node is not None:
            node.score = max(node.score, score)
            return node
        if len(self._places) > MAX_NODES:
            return None
        chain = chain_next(parent.chain, token)
        node = _Node(token, parent.position + 1, chain, score, draft.drafter)
        parent.children[token] = node
        self._places[chain] = node
        return node

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens are committed: move the root along them and forget the rest."""
        root = self._root
        for token in tokens:
            chain = chain_next(root.chain, token)
            root = root.children.get(token) or _Node(token, root.position + 1, chain, 1.0, "")
            self._committed.append(token)
            self._chains.append(chain)
        self._root = root
        self._places = {}
        below = [root]
        while below:
            node = below.pop()
            self._places[node.chain] = node
            below += node.children.values()

    def best(self, limit: int) -> Proposal:
        """The likeliest chain of at most `limit` guesses."""
        if not self._root.children:
            return NOTHING
        node, path = self._root, list[_Node]()
        while node.children and len(path) < limit:
            node = max(node.children.values(), key=lambda child: child.score)
            path.append(node)
        tokens = tuple(node.token for node in path)
        return Proposal(tokens, tuple(range(ROOT, len(path) - 1)), tuple(node.source for node in path))
