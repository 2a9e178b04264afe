"""verify: the committed tokens are the target's draws, whatever the proposal says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.engine.proposer import NOTHING, ROOT, Proposal
from server.engine.verify import verify

NEVER: frozenset[int] = frozenset()


def chain(*tokens: int) -> Proposal:
    return Proposal(tokens, tuple(range(-1, len(tokens) - 1)), ("d",) * len(tokens))


def drawing(*tokens: int):
    """Return a function that gives the target's draws in order and remembers their nodes."""
    nodes: list[int] = []

    def draw(node: int, i: int) -> int:
        nodes.append(node)
        return tokens[i]

    return draw, nodes


def test_nothing_proposed_commits_one_draw():
    draw, nodes = drawing(5)
    verdict = verify(NOTHING, draw, NEVER, 10)
    assert verdict.tokens == (5,)
    assert verdict.nodes == ()
    assert nodes == [ROOT]


def test_guesses_count_until_first_wrong():
    draw, nodes = drawing(1, 2, 9)
    verdict = verify(chain(1, 2, 3, 4), draw, NEVER, 10)
    assert verdict.tokens == (1, 2, 9)
    assert verdict.nodes == (0, 1)
    assert nodes == [ROOT, 0, 1]


def test_right_guesses_commit_one_more():
    draw, _ = drawing(1, 2, 3)
    assert verify(chain(1, 2), draw, NEVER, 10).tokens == (1, 2, 3)


def test_a_stop_token_ends_an_accepted_run():
    draw, nodes = drawing(1, 2, 3)
    verdict = verify(chain(1, 2, 3), draw, frozenset({2}), 10)
    assert verdict.tokens == (1, 2)
    assert verdict.nodes == (0, 1)
    assert nodes == [ROOT, 0]


def test_the_limit_ends_an_accepted_run():
    draw, _ = drawing(1, 2, 3)
    assert verify(chain(1, 2, 3), draw, NEVER, 2).tokens == (1, 2)


def test_a_tree_is_walked_along_the_draws():
    tree = Proposal((1, 2, 3, 4), (ROOT, ROOT, 1, 2), ("a", "b", "b", "b"))
    draw, nodes = drawing(2, 3, 7)
    verdict = verify(tree, draw, NEVER, 10)
    assert verdict.tokens == (2, 3, 7)
    assert verdict.nodes == (1, 2)
    assert nodes == [ROOT, 1, 2]


@given(
    draws=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    guesses=st.lists(st.integers(0, 3), max_size=8),
    limit=st.integers(1, 12),
    stop=st.frozensets(st.integers(0, 3), max_size=1),
)
def test_proposals_commit_drawn_prefixes(
    draws: list[int], guesses: list[int], limit: int, stop: frozenset[int]
):
    draw, _ = drawing(*draws)
    verdict = verify(chain(*guesses), draw, stop, limit)
    n = len(verdict.tokens)
    assert verdict.tokens == tuple(draws[:n])
    assert 1 <= n <= limit
    assert not stop & set(verdict.tokens[:-1])
    assert list(verdict.tokens[: len(verdict.nodes)]) == guesses[: len(verdict.nodes)]
    ended_early = n == limit or verdict.tokens[-1] in stop
    assert ended_early or n == len(guesses) + 1 or verdict.tokens[-1] != guesses[n - 1]
