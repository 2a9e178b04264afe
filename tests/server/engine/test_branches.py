"""Trees in the KV cache: which rows belong to whom, and that any tree gives the text of none."""

from __future__ import annotations

import random
import tracemalloc
from itertools import islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.branches import branches
from server.engine.proposer import NOTHING, ROOT, Proposal
from server.engine.scheduler import Limits
from tests.fake_backend import FakeBackend, FakeModel
from tests.support import Harness, OracleProposer, request


def test_a_chain_has_one_leaf():
    tree = branches((ROOT, 0, 1))
    assert tree.n_leaves == 1
    assert tree.below == ((0,), (0,), (0,))
    assert tree.depths == (0, 1, 2)


def test_main_leaf_beats_first_children():
    #      0 - 1 - 3
    #       \\- 2     4 (another root child)
    tree = branches((ROOT, 0, 0, 1, ROOT))
    assert tree.n_leaves == 3
    assert tree.below == ((0, 1), (0,), (1,), (0,), (2,))
    assert tree.depths == (0, 1, 1, 2, 0)


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_leaf_numbers_cover_their_paths(choices: list[int]):
    parents = tuple(choice % (i + 1) - 1 for i, choice in enumerate(choices))
    tree = branches(parents)
    leaves = [i for i in range(len(parents)) if i not in parents]
    assert sorted(leaf for node in leaves for leaf in tree.below[node]) == list(range(tree.n_leaves))
    assert all(len(tree.below[node]) == 1 for node in leaves)
    for node, parent in enumerate(parents):
        if parent != ROOT:
            assert set(tree.below[node]) <= set(tree.below[parent])


def test_shapes_stay_under_quarter_megabyte():
    tracemalloc.start()
    try:
        for shape in islice(product(*(range(ROOT, i) for i in range(8))), 2000):
            branches(shape)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 18


class TreeOracle(OracleProposer):
    """An oracle that hides the text among wrong branches, in at most three leaves."""

    def __init__(self, texts: list[list[int]]) -> None:
        super().__init__(texts)
        self._random = random.Random(4)
        self.n_branched = 0

    def _propose(self, session: int, limit: int) -> Proposal:
        right = super()._propose(session, limit)
        n = min(len(right), self._random.randrange(1, 5))
        if limit < 8 or n == 0:
            return NOTHING
        tokens, parents = list(right.tokens[:n]), list(range(ROOT, n - 1))
        for _ in range(self._random.randrange(3)):
            self._add_branch(tokens, parents)
        order = list(range(len(tokens)))
        if self._random.random() < 0.7:  # let a wrong branch come before the right one
            order = self._shuffled(parents)
        place = {node: i for i, node in enumerate(order)}
        self.n_branched += len(set(parents)) < len(parents)
        return Proposal(
            tuple(tokens[node] for node in order),
            tuple(ROOT if parents[node] == ROOT else place[parents[node]] for node in order),
            ("oracle",) * len(order),
        )

    def _add_branch(self, tokens: list[int], parents: list[int]) -> None:
        parent = self._random.randrange(ROOT, len(tokens))
        used = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        for _ in range(self._random.randrange(1, 3)):
            token = self._random.randrange(97, 122)
            if token in used:
                return
            tokens.append(token)
            parents.append(parent)
            parent, used = len(tokens) - 1, set[int]()

    def _shuffled(self, parents: list[int]) -> list[int]:
        """Return a random order in which parents come first."""
        order: list[int] = []
        ready = [i for i, parent in enumerate(parents) if parent == ROOT]
        while ready:
            node = ready.pop(self._random.randrange(len(ready)))
            order.append(node)
            ready += [i for i, parent in enumerate(parents) if parent == node]
        return order


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("n_sessions", [1, 3])
def test_any_tree_gives_the_text_of_none(temperature: float, n_sessions: int):
    model = FakeModel(eog_rate=0.0)
    asks = [request(seed=i, temperature=temperature, max_tokens=150) for i in range(n_sessions)]
    asks = [
        request((*ask.prompt, i), temperature=temperature, seed=i, max_tokens=150)
        for i, ask in enumerate(asks)
    ]
    expected = [outcome.tokens for outcome in Harness(FakeBackend(model)).run(*asks)]
    texts = [[*ask.prompt, *tokens] for ask, tokens in zip(asks, expected, strict=True)]
    oracle = TreeOracle(texts)
    harness = Harness(FakeBackend(model), oracle, limits=Limits(n_batch=64, n_chunk=16))
    assert [outcome.tokens for outcome in harness.run(*asks)] == expected
    assert oracle.n_branched > 10
    assert oracle.accepted > 50
    again = [request(text, max_tokens=20) for text in texts]
    alone = Harness(FakeBackend(model)).run(*again)
    assert [o.tokens for o in harness.run(*again)] == [o.tokens for o in alone]
    assert all(
        outcome.started.n_cached > 100
        for outcome in harness.outcomes.values()
        if outcome.started.n_prompt > 150
    )
