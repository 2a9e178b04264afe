"""Merge the guesses of all sources past a session's committed tokens into one scored tree.

Every node of the tree has a chain hash. By such a hash, a draft names the text that it continues: all
committed tokens, or these and some guesses. If the lead has committed more tokens since the draft was made,
the draft must have guessed them, and only its guesses after them are added to the tree.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal, TypeAlias

from server.engine.proposer import ROOT, Proposal
from server.speculation.hits import HitRates
from server.speculation.wire.messages import MAX_NODES, Draft, chain_next

# Maximum nodes of a tree: MAX_NODES for each of three drafters (MAX_PER_SESSION) and for the sources in the
# lead, so that none keeps out the others. MAX_NODES is what one message holds, and twice the longest path
# that drafters make by default. Half: such a path leaves no room for second choices; twice: a flood costs
# twice as much memory and time.
MAX_TREE_NODES = 4 * MAX_NODES
# Minimum path probability of an offered guess, however cheap its row: each guess takes 3 us of Python. If 95
# of 100 guesses are right, twice: 1 percent of a chain is lost; half: 14 more nodes are looked at.
LEAST = 0.005

# Latest commits whose trees are remembered, to recognise drafts that were sent before one of their guesses
# proved wrong. Half: a drafter 100 ms away, with steps of 5 ms, gets the session anew after each wrong guess;
# twice: twice the memory.
REMEMBERED = 32
AND = " & "  # between the names of sources that agree

# As in backend.py: list[int]() takes much longer than list()
_ints: type[list[int]] = list
_texts: type[list[str]] = list
_floats: type[list[float]] = list
_places: type[set[int]] = set

Grafted: TypeAlias = Literal["fresh", "late", "stale", "lost", "full"]


@dataclass(slots=True)
class _GuessNode:
    """A guessed token in the tree."""

    token: int
    position: int  # tokens of the sequence up to and with this one
    chain: int
    source: str  # sources that agree count as one source with all their names
    first: str  # source that guessed it first
    confidence: int  # probability times 255 given its parent, by the surest source
    children: dict[int, _GuessNode]  # by token


class ScoredTree:
    """One session's tree of guesses, which are token ids of the target. Not thread-safe."""

    def __init__(self, position: int, chain: int) -> None:
        """Begin after `position` committed tokens, whose chain hash is `chain`."""
        self._start = self.position = position  # committed tokens: at first, and now
        self._chains = [chain]  # after start, start + 1, … committed tokens
        self._committed: list[int] = []
        self._root = _GuessNode(ROOT, position, chain, "", "", 255, {})
        self._places = {chain: self._root}
        self._held: Counter[str] | None = None  # nodes by source, None as long as there is room for all
        # chain hashes of the tree before each of the latest commits, and of drafts with no place in it: a
        # draft that continues one of them is stale; a draft that continues an unknown text is lost
        self._before: deque[dict[int, _GuessNode]] = deque([{}], REMEMBERED)

    @property
    def chain(self) -> int:
        return self._root.chain

    def graft(self, draft: Draft) -> Grafted:
        """Add a draft's guesses for uncommitted positions to the tree.

        Returns:
            'fresh': The guesses follow a token of the tree. 'late': They follow an earlier committed token,
            and some agree with the tokens committed since. 'stale': They contradict committed tokens. 'lost':
            They continue guesses that never arrived. 'full': The tree has no room for all of them.
        """
        if draft.base < self.position:
            return self._graft_late(draft)
        place = self._places.get(draft.chain)
        if place is None or place.position != draft.base:
            return self._unplaced(draft)
        places: list[_GuessNode | None] = []
        for token, above, confidence in zip(draft.tokens, draft.parents, draft.confidences, strict=True):
            parent = place if above == ROOT else places[above]
            places.append(parent and self._grow(parent, token, draft.drafter, confidence))
        return "full" if None in places else "fresh"

    def _graft_late(self, draft: Draft) -> Grafted:
        """Compare the draft with the committed tokens, and add its guesses beyond them to the tree."""
        at = draft.base - self._start
        if at < 0 or self._chains[at] != draft.chain:
            return self._unplaced(draft)
        agreed: list[int | _GuessNode | None] = []  # a committed position, a node of the tree, or neither
        for i, token in enumerate(draft.tokens):
            parent = draft.base if draft.parents[i] == ROOT else agreed[draft.parents[i]]
            if isinstance(parent, int) and parent < self.position:
                agrees = self._committed[parent - self._start] == token
                agreed.append(parent + 1 if agrees else None)
            else:
                above = self._root if isinstance(parent, int) else parent
                agreed.append(above and self._grow(above, token, draft.drafter, draft.confidences[i]))
        if None in agreed:
            self._unplaced(draft)
        return "late" if any(a is not None for a in agreed) else "stale"

    def _unplaced(self, draft: Draft) -> Grafted:
        """Return 'stale' or 'lost' for a draft with no place in the tree; remember its guesses."""
        chain, places = draft.chain, self._before[-1]
        here = draft.base <= self.position or chain in self._places
        known = here or any(chain in before for before in self._before)
        chains: list[int] = []
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            chains.append(chain_next(chain if parent == ROOT else chains[parent], token))
        if len(places) <= MAX_NODES:
            places.update(dict.fromkeys(chains, self._root))
        return "stale" if known else "lost"

    def _grow(self, parent: _GuessNode, token: int, source: str, confidence: int) -> _GuessNode | None:
        """Add a guess below `parent`, or merge it with an equal one; return its node, or None if full."""
        node = parent.children.get(token)
        if node is not None:
            node.confidence = max(node.confidence, confidence)
            if not node.source:
                node.source = node.first = source
            elif node.source != source and source not in node.source.split(AND):
                node.source = AND.join(sorted([*node.source.split(AND), source]))
            return node
        if len(self._places) > MAX_NODES and not self._has_room(source):
            return None
        chain = chain_next(parent.chain, token)
        node = _GuessNode(token, parent.position + 1, chain, source, source, confidence, {})
        parent.children[token] = node
        self._places[chain] = node
        return node

    def _has_room(self, source: str) -> bool:
        """Count one more node of this source in a large tree; return True if the tree may have it."""
        if self._held is None:
            self._held = Counter(node.first for node in self._places.values())
        self._held[source] += 1
        return self._held[source] <= MAX_NODES and len(self._places) <= MAX_TREE_NODES

    def guess(self, source: str, tokens: Sequence[int], confidences: Sequence[int]) -> None:
        """Add a chain of guesses after the committed tokens. Confidences are bytes: probability times 255."""
        node: _GuessNode | None = self._root
        for token, confidence in zip(tokens, confidences, strict=True):
            node = self._grow(node, token, source, confidence)
            if node is None:
                return

    def branch(self, path: Sequence[int], source: str, token: int, confidence: int) -> None:
        """Add one guess after `path`, the tokens from the root on, unless the tree lacks this path."""
        node: _GuessNode | None = self._root
        for step in path:
            node = node.children.get(step) if node else None
        if node is not None:
            self._grow(node, token, source, confidence)

    def commit(self, tokens: Sequence[int], hits: HitRates) -> None:
        """Move the root past these committed tokens, and drop guesses that did not match.

        Guesses for these tokens are counted in `hits`, as right or wrong.
        """
        root, position, chain, chains = self._root, self.position + len(tokens), self.chain, self._chains
        node: _GuessNode | None = root
        for token in tokens:
            if node is not None and node.children:
                _learn(hits, node.children.values(), token)
            node = node.children.get(token) if node is not None else None
            chain = chain_next(chain, token) if node is None else node.chain
            chains.append(chain)
        if tokens:
            self._committed += tokens
            self._root = root = node or _GuessNode(tokens[-1], position, chain, "", "", 255, {})
            self.position = position
            self._before.append(self._places)
            self._places = places = {root.chain: root}
            self._held = None
            below = list(root.children.values())
            while below:
                node = below.pop()
                places[node.chain] = node
                if node.children:
                    below += node.children.values()

    @property
    def n_below(self) -> int:
        """Return the number of the root's children: the guesses for the next token."""
        return len(self._root.children)

    def offer(
        self,
        hits: HitRates,
        limit: int,
        *,
        leaves: int = 3,
        p_min: float = 0.0,
        allows_source: Callable[[str], bool] | None = None,
        allows: Callable[[Sequence[int]], bool] | None = None,
    ) -> Proposal:
        """Return the most probable guesses as a tree, most probable ones first.

        Args:
            hits: Hit rates of the sources.
            limit: Maximum guesses.
            leaves: Maximum leaves of the returned tree.
            p_min: Minimum probability that a guess and all before it are right.
            allows_source: Returns True for sources that may guess; None: all may.
            allows: Returns True for token paths from the root that a grammar allows; None: all are allowed.
        """
        tokens, parents, sources, probabilities = _ints(), _ints(), _texts(), _floats()
        heap: list[_Ranked] = []
        branched, n_leaves, path, index = _places(), 0, 1.0, ROOT
        node: _GuessNode | None = self._root
        while True:
            for child in node.children.values() if node else ():
                probability = path * hits.probability(child.source, child.confidence)
                if probability >= p_min and (allows_source is None or allows_source(child.source)):
                    heappush(heap, (-probability, child.chain, index, child))  # chains differ
            if not heap or len(tokens) >= limit or -heap[0][0] < LEAST:
                break
            negative, _, parent, node = heappop(heap)
            path, index = -negative, len(tokens)
            new_leaf = parent in branched or not tokens
            barred = new_leaf and n_leaves == leaves
            if barred or (allows and not allows(_path(tokens, parents, parent, node.token))):
                node = None  # and nothing below it
                continue
            n_leaves += new_leaf
            branched.add(parent)
            tokens.append(node.token)
            parents.append(parent)
            sources.append(node.first)
            probabilities.append(path)
        return Proposal(tuple(tokens), tuple(parents), tuple(sources), (), tuple(probabilities))


_Ranked: TypeAlias = tuple[float, int, int, _GuessNode]  # minus path probability, chain hash, parent, node


def _learn(hits: HitRates, guesses: Collection[_GuessNode], token: int) -> None:
    """Learn from all guesses for one position at which `token` was committed.

    A source's rates of best guesses count only its surest guess. Its other guesses are alternatives in case
    that guess is wrong.
    """
    if len(guesses) == 1:
        (guess,) = guesses
        if AND not in guess.source:
            hits.observe(guess.source, guess.confidence, guess.token == token, best=True)
            return
    surest: dict[str, _GuessNode] = {}
    for guess in guesses:
        hits.observe(guess.source, guess.confidence, guess.token == token)
        for source in guess.source.split(AND) if AND in guess.source else (guess.source,):
            if source not in surest or surest[source].confidence < guess.confidence:
                surest[source] = guess
    for source, guess in surest.items():
        hits.observe_best(source, guess.confidence, guess.token == token)


def _path(tokens: list[int], parents: list[int], parent: int, token: int) -> list[int]:
    """Return the tokens from the root to `token`, a child of the node with index `parent` (or ROOT)."""
    path = [token]
    while parent != ROOT:
        path.append(tokens[parent])
        parent = parents[parent]
    return path[::-1]
