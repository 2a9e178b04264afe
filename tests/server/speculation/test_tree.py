"""The lead's tree of guesses: what is grafted, what is refused, what is proposed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.engine.proposer import NOTHING, ROOT
from server.speculation.messages import Draft, chain_next
from server.speculation.tree import MAX_NODES, ScoredTree

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
    """A draft of these tokens, whose base is START plus the tokens it follows."""
    if parents is None:
        parents = tuple(range(ROOT, len(tokens) - 1))
    return Draft(
        drafter,
        1,
        0,
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


def test_an_empty_tree_proposes_nothing():
    assert ScoredTree(START, CHAIN).best(8) == NOTHING


def test_a_chain_is_proposed_up_to_the_limit():
    tree = tree_with(draft(1, 2, 3))
    assert tree.best(8).tokens == (1, 2, 3)
    assert tree.best(2).tokens == (1, 2)
    assert tree.best(2).parents == (ROOT, 0)


def test_a_draft_may_continue_an_earlier_one():
    tree = tree_with(draft(1, 2))
    assert tree.graft(draft(3, 4, after=(1, 2))) == "fresh"
    assert tree.best(8).tokens == (1, 2, 3, 4)


def test_the_likelier_of_two_drafters_is_proposed_and_named():
    tree = tree_with(draft(1, 2, confidence=90, drafter="a"), draft(5, 6, confidence=180, drafter="b"))
    assert tree.best(8).tokens == (5, 6)
    assert tree.best(8).sources == ("b", "b")


def test_commit_keeps_what_agrees_and_forgets_the_rest():
    tree = tree_with(draft(1, 2, 3), draft(4, 5))
    tree.commit([1, 2])
    assert tree.position == START + 2
    assert tree.best(8).tokens == (3,)
    tree.commit([9])
    assert tree.best(8) == NOTHING


def test_a_late_draft_is_grafted_where_it_still_agrees():
    tree = ScoredTree(START, CHAIN)
    tree.commit([1, 2])
    assert tree.graft(draft(1, 2, 3, 4)) == "late"
    assert tree.best(8).tokens == (3, 4)
    assert tree.graft(draft(2, 3, 4, 5, after=(1,))) == "late"
    assert tree.best(8).tokens == (3, 4, 5)


def test_a_late_tree_keeps_only_its_agreeing_branch():
    tree = ScoredTree(START, CHAIN)
    tree.commit([1, 2])
    late = draft(1, 9, 2, 7, 8, parents=(ROOT, ROOT, 0, 2, 1))
    assert tree.graft(late) == "late"
    assert tree.best(8).tokens == (7,)


def test_a_draft_that_disagrees_or_whose_base_is_unknown_is_stale():
    tree = ScoredTree(START, CHAIN)
    tree.commit([1, 2])
    assert tree.graft(draft(5, 6)) == "stale"
    assert tree.graft(draft(3, after=(1, 5))) == "stale"
    assert tree.graft(draft(3, after=(1, 2, 7))) == "stale"
    before = Draft("d", 1, 0, START - 3, CHAIN, 0, (ROOT,), (1,), b"\xff")
    assert tree.graft(before) == "stale"
    assert tree.best(8) == NOTHING


def test_the_same_draft_twice_is_one():
    tree = tree_with(draft(1, 2), draft(1, 2))
    assert tree.best(8).tokens == (1, 2)


def test_a_flood_is_cut_off():
    tree = ScoredTree(START, CHAIN)
    outcomes = [tree.graft(draft(*range(i, i + 200))) for i in range(0, 4 * MAX_NODES, 200)]
    assert outcomes[0] == "fresh"
    assert outcomes[-1] == "full"


TOKEN = st.integers(0, 2)


COMMIT = st.tuples(st.none(), st.lists(TOKEN, min_size=1, max_size=4))
DRAFT = st.tuples(st.integers(0, 6), st.lists(TOKEN, min_size=1, max_size=6))


@given(st.lists(st.one_of(COMMIT, DRAFT), max_size=25))
def test_what_is_proposed_always_follows_the_committed_tokens(steps: list[tuple[int | None, list[int]]]):
    """Against a naive model, the set of whole texts that drafts have claimed. A step is tokens to commit
    (None), or a draft of tokens whose base is that far behind."""
    tree, committed, claims = ScoredTree(START, CHAIN), list[int](), set[tuple[int, ...]]()
    for behind, tokens in steps:
        if behind is None:
            tree.commit(tokens)
            committed += tokens
        else:
            at = max(0, len(committed) - behind)
            tree.graft(draft(*tokens, after=tuple(committed[:at])))
            claims.add((*committed[:at], *tokens))
        assert tree.position == START + len(committed)
        assert tree.chain == chain_of(*committed)
        proposal = tree.best(8)
        text = (*committed, *proposal.tokens)
        if proposal:
            assert any(claim[: len(text)] == text for claim in claims)
        follows = any(len(c) > len(committed) and list(c[: len(committed)]) == committed for c in claims)
        assert follows == bool(proposal)
