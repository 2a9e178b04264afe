"""The lead's tree of guesses: what is grafted, what is refused, what is proposed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.proposer import NOTHING, ROOT, Proposal
from server.speculation.hits import HitRates
from server.speculation.tree import AND, LEAST, MAX_TREE_NODES, ScoredTree
from server.speculation.wire import messages
from server.speculation.wire.messages import Draft, chain_next

START = 10
CHAIN = 0x1234


def chain_of(*tokens: int) -> int:
    chain = CHAIN
    for token in tokens:
        chain = chain_next(chain, token)
    return chain


def draft(
    *tokens: int,
    after: tuple[int, ...] = (),
    parents: tuple[int, ...] | None = None,
    confidence: int = 200,
    drafter: str = "d",
) -> Draft:
    """Return a draft of these tokens, whose base is START plus the tokens it follows."""
    if parents is None:
        parents = tuple(range(ROOT, len(tokens) - 1))
    return Draft(
        drafter,
        1,
        START + len(after),
        chain_of(*after),
        0,
        parents,
        tokens,
        bytes([confidence] * len(tokens)),
    )


def tree_with(*drafts: Draft) -> ScoredTree:
    tree = ScoredTree(START, CHAIN)
    for one in drafts:
        tree.graft(one)
    return tree


def best(tree: ScoredTree, limit: int) -> Proposal:
    """Return the likeliest chain."""
    offer = tree.offer(HitRates(), limit, leaves=1)
    return offer.take(len(offer))


def test_an_empty_tree_proposes_nothing():
    assert best(ScoredTree(START, CHAIN), 8) == NOTHING


def test_chain_is_proposed_to_limit():
    tree = tree_with(draft(1, 2, 3))
    assert best(tree, 8).tokens == (1, 2, 3)
    assert best(tree, 2).tokens == (1, 2)
    assert best(tree, 2).parents == (ROOT, 0)


def test_a_draft_may_continue_an_earlier_one():
    tree = tree_with(draft(1, 2))
    assert tree.graft(draft(3, 4, after=(1, 2))) == "fresh"
    assert best(tree, 8).tokens == (1, 2, 3, 4)


def test_likelier_drafter_is_named():
    tree = tree_with(draft(1, 2, confidence=90, drafter="a"), draft(5, 6, confidence=180, drafter="b"))
    assert best(tree, 8).tokens == (5, 6)
    assert best(tree, 8).sources == ("b", "b")


def test_commit_keeps_agreeing_guesses():
    tree = tree_with(draft(1, 2, 3), draft(4, 5))
    tree.commit([1, 2], HitRates())
    assert tree.position == START + 2
    assert best(tree, 8).tokens == (3,)
    tree.commit([9], HitRates())
    assert best(tree, 8) == NOTHING


def test_late_draft_is_grafted():
    tree = ScoredTree(START, CHAIN)
    tree.commit([1, 2], HitRates())
    assert tree.graft(draft(1, 2, 3, 4)) == "late"
    assert best(tree, 8).tokens == (3, 4)
    assert tree.graft(draft(2, 3, 4, 5, after=(1,))) == "late"
    assert best(tree, 8).tokens == (3, 4, 5)


def test_late_tree_keeps_agreeing_branch():
    tree = ScoredTree(START, CHAIN)
    tree.commit([1, 2], HitRates())
    late = draft(1, 9, 2, 7, 8, parents=(ROOT, ROOT, 0, 2, 1))
    assert tree.graft(late) == "late"
    assert best(tree, 8).tokens == (7,)


def test_disagreeing_draft_is_stale():
    tree = ScoredTree(START, CHAIN)
    tree.commit([1, 2], HitRates())
    assert tree.graft(draft(5, 6)) == "stale"
    assert tree.graft(draft(3, after=(1, 5))) == "stale"
    assert tree.graft(draft(3, after=(1, 2, 7))) == "lost"
    before = Draft("d", 1, START - 3, CHAIN, 0, (ROOT,), (1,), b"\xff")
    assert tree.graft(before) == "stale"
    assert best(tree, 8) == NOTHING


@pytest.mark.parametrize("n_commits", [1, 20])
def test_wrong_continuation_stays_stale(n_commits: int):
    """A drafter 100 ms away answers after 20 steps of 5 ms; others guess meanwhile."""
    first = tuple(range(30, 60))
    tree = tree_with(draft(*first))
    for _ in range(n_commits):
        tree.guess("other", [7], [200])
        tree.commit([7], HitRates())
    assert tree.graft(draft(5, 6, after=first)) == "stale"
    assert tree.graft(draft(8, after=(*first, 5, 6))) == "stale"
    assert tree.graft(draft(8, after=(*first, 5, 4))) == "lost"


def test_old_wrong_guess_is_forgotten():
    first = tuple(range(30, 90))
    tree = tree_with(draft(*first))
    for _ in range(50):
        tree.commit([7], HitRates())
    assert tree.graft(draft(5, 6, after=first)) == "lost"


def test_late_wrong_continuation_is_stale():
    tree = tree_with()
    tree.commit([1, 2], HitRates())
    assert tree.graft(draft(1, 2, 3, 4)) == "late"
    assert tree.graft(draft(1, 5, 6, 7)) == "late"
    assert tree.graft(draft(8, after=(1, 5, 6, 7))) == "stale"
    assert tree.graft(draft(9, 9, 9)) == "stale"
    assert tree.graft(draft(8, after=(9, 9, 9))) == "stale"


def test_lost_draft_is_told_once():
    tree = tree_with(draft(1))
    assert tree.graft(draft(3, after=(1, 2))) == "lost"
    assert tree.graft(draft(4, after=(1, 2, 3))) == "stale"
    for _ in range(40):
        tree.commit([1], HitRates())
    ahead = (1,) * 40
    assert tree.graft(draft(3, after=(*ahead, 2))) == "lost"


def test_flood_memory_is_bounded():
    tree = tree_with()
    for first in range(8 * MAX_TREE_NODES):
        tree.graft(draft(1, after=(2, first)))
    (places,) = tree._before  # pyright: ignore[reportPrivateUsage]
    assert len(places) <= 2 * MAX_TREE_NODES


def test_repeated_draft_counts_once():
    tree = tree_with(draft(1, 2), draft(1, 2))
    assert best(tree, 8).tokens == (1, 2)


def test_a_flood_is_cut_off():
    tree = ScoredTree(START, CHAIN)
    outcomes = [tree.graft(draft(*range(i, i + 200))) for i in range(0, 4 * MAX_TREE_NODES, 200)]
    assert outcomes[0] == "fresh"
    assert outcomes[-1] == "full"


def test_a_flood_keeps_no_other_drafter_out():
    tree = ScoredTree(START, CHAIN)
    for liar in ("x", "y"):
        for first in range(0, 4 * MAX_TREE_NODES, 200):
            tree.graft(draft(*range(first + 1, first + 200), drafter=liar))
    long = tuple(range(7, 7 + messages.MAX_NODES))
    assert tree.graft(draft(*long, confidence=255, drafter="honest")) == "fresh"
    assert best(tree, 3).tokens == (7, 8, 9)
    tree.commit([7], HitRates())
    assert tree.graft(draft(5, 6, after=(7,), drafter="x")) == "fresh"


def paths(offer: Proposal) -> list[tuple[int, ...]]:
    """Return the path of every guess, from the root."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(offer.tokens, offer.parents, strict=True):
        found.append((*(found[parent] if parent != ROOT else ()), token))
    return found


def test_offer_is_most_probable_tree():
    tree = tree_with(
        draft(1, 2, 3, confidence=240),
        draft(5, 6, confidence=120, drafter="b"),
        draft(7, confidence=60, drafter="c"),
        draft(8, confidence=30, drafter="d"),
    )
    offer = tree.offer(HitRates(), 8, leaves=3)
    assert offer.probabilities == tuple(sorted(offer.probabilities, reverse=True))
    assert paths(offer) == [(1,), (1, 2), (1, 2, 3), (5,), (7,), (5, 6)]
    assert offer.take(4) == Proposal((1, 2, 3, 5), (ROOT, 0, 1, ROOT), ("d", "d", "d", "b"))
    assert offer.take(0) == NOTHING


def test_unlikely_guess_is_not_offered():
    tree = tree_with(draft(*range(64), confidence=128))
    offer = tree.offer(HitRates(), 64)
    first = offer.probabilities[0]
    assert offer.probabilities[-1] >= LEAST > offer.probabilities[-1] * first
    assert 0 < len(offer) < 64


def test_offer_obeys_request_and_grammar():
    tree = tree_with(draft(1, 2, 3, confidence=250), draft(5, 6, confidence=250, drafter="b"))
    offer = tree.offer(HitRates(), 8, allows_source={"b"}.__contains__)
    assert paths(offer) == [(5,), (5, 6)]
    offer = tree.offer(HitRates(), 8, leaves=1, p_min=0.75)
    assert len(offer) == 2
    offer = tree.offer(HitRates(), 8, allows=[[1], [1, 2]].__contains__)
    assert paths(offer) == [(1,), (1, 2)]


def test_agreeing_sources_count_as_one():
    tree = tree_with(draft(1, drafter="b"), draft(1, drafter="a"), draft(1, drafter="b"))
    acceptance = HitRates()
    for _ in range(50):
        acceptance.observe(f"a{AND}b", 200, hit=True)
    offer = tree.offer(acceptance, 8)
    assert offer.sources == ("b",)
    assert offer.probabilities[0] > 0.95


def test_every_guess_beside_a_committed_token_teaches():
    acceptance = HitRates()
    for _ in range(30):
        tree = tree_with(draft(1, 2, drafter="right"), draft(4, 3, drafter="wrong"))
        tree.graft(draft(7, confidence=20, drafter="right"))  # its alternative
        tree.commit([1, 2, 9], acceptance)
    assert acceptance.mean("right") > 0.9
    assert acceptance.mean("wrong") < 0.1
    assert acceptance.probability("right", 20) < 0.1


def test_runner_up_is_grafted_below():
    tree = tree_with(draft(1, 2))
    tree.branch([1], "draft", 7, 50)
    tree.branch([6], "draft", 8, 50)
    assert paths(tree.offer(HitRates(), 8)) == [(1,), (1, 2), (1, 7)]


TOKEN = st.integers(0, 2)


COMMIT = st.tuples(st.none(), st.lists(TOKEN, min_size=1, max_size=4))
DRAFT = st.tuples(st.integers(0, 6), st.lists(TOKEN, min_size=1, max_size=6))


@given(st.lists(st.one_of(COMMIT, DRAFT), max_size=25))
def test_proposals_follow_committed_tokens(steps: list[tuple[int | None, list[int]]]):
    """Compare with a naive model: the set of whole texts that drafts have claimed.

    A step is tokens to commit (None), or a draft of tokens whose base is that far behind.
    """
    tree, committed, claims = ScoredTree(START, CHAIN), list[int](), set[tuple[int, ...]]()
    for behind, tokens in steps:
        if behind is None:
            tree.commit(tokens, HitRates())
            committed += tokens
        else:
            at = max(0, len(committed) - behind)
            tree.graft(draft(*tokens, after=tuple(committed[:at])))
            claims.add((*committed[:at], *tokens))
        assert tree.position == START + len(committed)
        assert tree.chain == chain_of(*committed)
        proposal = best(tree, 8)
        text = (*committed, *proposal.tokens)
        if proposal:
            assert any(claim[: len(text)] == text for claim in claims)
        follows = any(len(c) > len(committed) and list(c[: len(committed)]) == committed for c in claims)
        assert follows == bool(proposal)
