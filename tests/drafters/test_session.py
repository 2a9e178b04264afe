"""One session's bookkeeping, against a naive model and case by case."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drafters.session import DraftSession
from server.sampling.params import SamplingParams
from server.speculation.messages import Commit, Open, chain_next, chain_start

PROMPT = (5, 6, 7)
GREEDY = SamplingParams(0.0)


def opened(tokens: tuple[int, ...] = PROMPT, epoch: int = 0) -> DraftSession:
    return DraftSession(Open("lead", 1, epoch, chain_start(tokens), 16, GREEDY, tokens))


def drafting(*guesses: int) -> DraftSession:
    """A session whose guesses are all evaluated but the last."""
    session = opened()
    for guess in guesses:
        session.n_kv = len(session.tokens)
        session.extend(guess, 0.9)
    return session


def commit(*tokens: int, base: int = len(PROMPT), chain: int = 1) -> Commit:
    return Commit(1, 0, base, chain, tokens)


def chained(chain: int, *tokens: int) -> int:
    for token in tokens:
        chain = chain_next(chain, token)
    return chain


def test_a_path_that_agrees_is_kept():
    session = drafting(1, 2, 3, 4)
    assert session.commit(commit(1, 2))
    assert session.n_ahead == 2
    assert session.pending == [4]


def test_a_path_that_diverges_is_rolled_back_to_the_common_prefix():
    session = drafting(1, 2, 3, 4)
    assert session.commit(commit(1, 9))
    assert session.n_ahead == 0
    assert session.tokens == [*PROMPT, 1, 9]
    assert session.pending == [9]


def test_the_gap_includes_the_drafters_own_last_token():
    session = drafting(1, 2)
    assert session.commit(commit(1, 2, 3, 4))
    assert session.pending == [2, 3, 4]


def test_a_gap_is_noticed_and_an_overlap_tolerated():
    session = opened()
    assert not session.commit(commit(8, base=5))
    assert session.commit(commit(1, 2))
    assert session.commit(commit(2, 3, base=4))
    assert session.tokens == [*PROMPT, 1, 2, 3]
    assert not session.commit(commit(9, 3, 4, base=4))
    assert session.commit(commit(1, 2))
    assert session.tokens == [*PROMPT, 1, 2, 3]


def test_drafts_continue_each_other():
    session = opened()
    start = chain_start(PROMPT)
    session.extend(1, 1.0)
    session.extend(2, 0.5)
    first = session.take_draft("d", 9)
    assert (first.base, first.chain, first.tokens, first.parents) == (3, start, (1, 2), (-1, 0))
    assert first.confidences == bytes([255, 128])
    session.extend(3, 1.0)
    second = session.take_draft("d", 9)
    assert (second.base, second.chain, second.tokens) == (5, chained(start, 1, 2), (3,))


def test_after_a_divergence_drafts_begin_at_the_committed_tokens():
    session = drafting(1, 2)
    session.take_draft("d", 0)
    session.commit(commit(4, chain=77))
    session.extend(8, 1.0)
    draft = session.take_draft("d", 0)
    assert (draft.base, draft.chain, draft.tokens) == (4, 77, (8,))


def test_unpublished_guesses_that_were_committed_are_not_published():
    session = drafting(1, 2, 3)
    session.commit(commit(1, 2))
    draft = session.take_draft("d", 0)
    assert (draft.base, draft.tokens) == (5, (3,))
    assert draft.chain == chained(chain_start(PROMPT), 1, 2)


TOKEN = st.integers(0, 1)


@given(st.lists(st.tuples(st.booleans(), st.lists(TOKEN, min_size=1, max_size=4)), max_size=20))
def test_any_course_keeps_the_books(steps: list[tuple[bool, list[int]]]):
    """A step is guesses to add (each evaluated but the last), or tokens the lead commits."""
    session, committed = opened(), list(PROMPT)
    in_cache: list[int] = []
    for guessing, tokens in steps:
        if guessing:
            for token in tokens:
                in_cache[session.n_kv :] = session.pending
                session.n_kv = len(session.tokens)
                session.extend(token, 0.5)
        else:
            chain = chained(chain_start(PROMPT), *committed[3:], *tokens)
            assert session.commit(Commit(1, 0, len(committed), chain, tuple(tokens)))
            committed += tokens
        assert session.tokens[: session.n_committed] == committed
        assert session.tokens[: session.n_kv] == in_cache[: session.n_kv]
        assert session.n_kv < len(session.tokens)
        if session.unpublished:
            draft = session.take_draft("d", 0)
            assert draft.chain == chained(chain_start(PROMPT), *session.tokens[3 : draft.base])
            assert list(draft.tokens) == session.tokens[draft.base :]
