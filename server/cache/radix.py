"""Find which of many token sequences shares the longest prefix with a given sequence, by a radix tree.

Edges are tuples of tokens that are compared by slices. So Python loops only over nodes (fewer than two per
sequence), and C loops over tokens. Pure; not thread-safe.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", list[int], tuple[int, ...], str, bytes)
Tokens: TypeAlias = list[int] | tuple[int, ...]


def common_prefix(a: S, b: S) -> int:
    """Return how many leading items of `a` and `b` are equal. Bisects over slices, which compare in C."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class _RadixNode(Generic[K]):
    """The sequences that begin with the `depth` tokens on the way from the root to this node.

    `here` maps the keys of sequences that end here to the stamps of their insertion. `n_keys` is the number
    of keys here and below, `latest` the highest stamp among them. Every node but a root has keys here or at
    least two children.
    """

    __slots__ = ("children", "depth", "edge", "here", "latest", "n_keys", "parent")

    def __init__(self, parent: _RadixNode[K] | None, edge: tuple[int, ...]) -> None:
        self.parent = parent
        self.edge = edge
        self.depth: int = len(edge) + (parent.depth if parent else 0)
        self.children: dict[int, _RadixNode[K]] = {}
        self.here: dict[K, int] = {}
        self.n_keys = 0
        self.latest = 0
        if parent:
            parent.children[edge[0]] = self

    def upwards(self) -> Iterator[_RadixNode[K]]:
        """Yield this node and all nodes above it."""
        node: _RadixNode[K] | None = self
        while node:
            yield node
            node = node.parent

    def newest(self) -> int:
        """Compute `latest`: the highest stamp of any key here or below; 0 if there is none.

        The `latest` of each child must be up to date.
        """
        stamps = [*self.here.values(), *(child.latest for child in self.children.values())]
        return max(stamps, default=0)


class RadixIndex(Generic[K]):
    """Maps keys to token sequences; several keys may have equal sequences. Every salt has its own tree."""

    def __init__(self) -> None:
        self._roots: dict[str, _RadixNode[K]] = {}  # by salt; none is empty
        self._ends: dict[K, _RadixNode[K]] = {}
        self._salts: dict[K, str] = {}
        self._keys: dict[int, K] = {}  # by stamp
        self._stamp = 0

    def __contains__(self, key: K) -> bool:
        return key in self._ends

    def insert(self, key: K, tokens: Tokens, salt: str = "") -> None:
        """Set the sequence of a key, replacing its earlier one."""
        if key in self._ends:
            self.remove(key)
        sequence = tuple(tokens)
        self._roots.setdefault(salt, _RadixNode(None, ()))
        node, length = self._descend_along(salt, sequence)
        if length < node.depth:
            node = _split_edge(node, length)
        if length < len(sequence):
            node = _RadixNode(node, sequence[length:])
        self._ends[key], self._salts[key] = node, salt
        self._stamp += 1
        self._keys[self._stamp] = key
        node.here[key] = self._stamp
        for above in node.upwards():
            above.n_keys += 1
            above.latest = self._stamp

    def remove(self, key: K) -> None:
        """Remove a key. Raises KeyError if it is not there."""
        node = self._ends.pop(key)
        salt = self._salts.pop(key)
        stamp = node.here.pop(key)
        del self._keys[stamp]
        for above in node.upwards():
            above.n_keys -= 1
        for above in _prune_node(node).upwards():
            if above.latest != stamp:
                break
            above.latest = above.newest()
        if not self._roots[salt].n_keys:
            del self._roots[salt]

    def match(self, tokens: Tokens, salt: str = "") -> tuple[int, K | None]:
        """Return (length, key) for the sequence that shares the longest prefix with these tokens.

        Among several such sequences, choose the one inserted last. Return (0, None) if none shares a token.
        """
        node, length = self._descend_along(salt, tuple(tokens))
        return (length, self._keys[node.latest]) if length else (0, None)

    def match_whole(self, tokens: Tokens, salt: str = "") -> tuple[int, K | None]:
        """Return (length, key) as match() does, of a sequence that is entirely a prefix of these tokens."""
        node, length = self._descend_along(salt, tuple(tokens))
        while node.parent and (node.depth > length or not node.here):
            node = node.parent
        return (node.depth, self._keys[max(node.here.values())]) if node.depth else (0, None)

    def shared(self, key: K) -> int:
        """Return the most leading tokens that a key's sequence shares with another sequence of its salt.

        Raises KeyError if the key is not there.
        """
        node = self._ends[key]
        while node.parent and node.n_keys == 1:
            node = node.parent
        return node.depth

    def _descend_along(self, salt: str, tokens: tuple[int, ...]) -> tuple[_RadixNode[K], int]:
        """Return the deepest node whose edge agrees with the tokens at least in part, and the common length.

        The common length is the number of agreeing tokens from the root on. It is less than the node's depth
        if only a part of its edge agrees.
        """
        node, length = self._roots.get(salt) or _RadixNode[K](None, ()), 0
        while length == node.depth and length < len(tokens):
            child = node.children.get(tokens[length])
            if child is None:
                break
            ahead = tokens[length : child.depth]
            length += len(ahead) if ahead == child.edge else common_prefix(ahead, child.edge)
            node = child
        return node, length


def _split_edge(node: _RadixNode[K], depth: int) -> _RadixNode[K]:
    """Split a node's edge at this depth, and return the new node above the node."""
    assert node.parent, "a root has no edge"
    n = depth - node.parent.depth
    middle = _RadixNode(node.parent, node.edge[:n])
    middle.n_keys, middle.latest = node.n_keys, node.latest
    node.parent, node.edge = middle, node.edge[n:]
    middle.children[node.edge[0]] = node
    return middle


def _prune_node(node: _RadixNode[K]) -> _RadixNode[K]:
    """Simplify the tree after a key was removed from this node.

    A node without keys here or below is removed. Then a node without keys of its own is merged with its only
    child. Returns the deepest node whose `latest` may still be the stamp of the removed key.
    """
    if node.parent and not node.n_keys:
        del node.parent.children[node.edge[0]]
        node = node.parent
    if node.parent and not node.here and len(node.children) == 1:
        (child,) = node.children.values()
        child.edge, child.parent = node.edge + child.edge, node.parent
        node.parent.children[child.edge[0]] = child
        node = node.parent
    return node
