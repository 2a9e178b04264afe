"""Which sequences the rows of a tree belong to: one per leaf, its stem shared. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.engine.proposer import ROOT

MAIN = 0
"""The leaf that is reached over every node's first child."""


@dataclass(frozen=True, slots=True)
class Branches:
    """depths[i]: how far node i is below the root, from 0. below[i]: the leaves below node i, by number;
    n_leaves of them in all, MAIN the first."""

    depths: tuple[int, ...]
    below: tuple[tuple[int, ...], ...]
    n_leaves: int


def branches(parents: Sequence[int]) -> Branches:
    """Of a tree whose parents come before their children."""
    n = len(parents)
    depths = [0] * n
    children: dict[int, list[int]] = {}
    for i, parent in enumerate(parents):
        depths[i] = 0 if parent == ROOT else depths[parent] + 1
        children.setdefault(parent, []).append(i)
    below: list[tuple[int, ...]] = [()] * n
    n_leaves = 0
    stack = children.get(ROOT, [])[::-1]
    while stack:
        node = stack.pop()
        following = children.get(node)
        if following:
            stack += following[::-1]
        else:
            below[node] = (n_leaves,)
            n_leaves += 1
    for i in range(n - 1, -1, -1):
        if i in children:
            below[i] = tuple(leaf for child in children[i] for leaf in below[child])
    return Branches(tuple(depths), tuple(below), n_leaves)
