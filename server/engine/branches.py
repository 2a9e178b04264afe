"""Which sequences the rows of a tree belong to: one per leaf, its stem shared. Pure."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from server.engine.proposer import ROOT

MAIN = 0
"""The leaf that is reached over every node's first child."""


# Shapes of trees that are kept, of 0.7 KB each where they have eight nodes; another one costs 15 us. In a
# soak with two drafters 0.34 of the trees had a kept one. Half: 0.25; twice, or eight times: 0.43 of them.
KEPT = 128


@dataclass(frozen=True, slots=True)
class Branches:
    """The leaves of a tree of guesses."""

    depths: tuple[int, ...]  # [i]: of node i, 0 below the root
    below: tuple[tuple[int, ...], ...]  # [i]: numbers of the leaves below node i; the first leaf is MAIN
    n_leaves: int


@functools.lru_cache(KEPT)
def branches(parents: tuple[int, ...]) -> Branches:
    """Return the leaves of a tree whose parents come before their children.

    A first child has its parent's first leaf, every other child begins a new one, which is below all its
    ancestors.
    """
    depths: list[int] = []
    below: list[tuple[int, ...]] = []
    has_child = {ROOT}
    n_leaves = 0
    for parent in parents:
        depths.append(0 if parent == ROOT else depths[parent] + 1)
        if parent in has_child:
            below.append((n_leaves,))
            while parent != ROOT:
                below[parent] += (n_leaves,)
                parent = parents[parent]
            n_leaves += 1
        else:
            has_child.add(parent)
            below.append(below[parent][:1])
    return Branches(tuple(depths), tuple(below), n_leaves)
