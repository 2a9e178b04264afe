"""One session's bookkeeping, against a naive model and case by case."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.drafting.draft_session import GREEDY, DraftSession
from server.sampling.draft_token import DraftGuess
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import MAX_NODES, Commit, Open, chain_next, chain_start

PROMPT = (5, 6, 7)


def opening(tokens: tuple[int, ...] = PROMPT, sampling: SamplingParams = GREEDY) -> Open:
    """Return the lead's Open once these tokens are committed, PROMPT first."""
    return Open("lead", 1, after(*tokens[len(PROMPT) :]), 16, sampling, tokens)


def drafting(*guesses: int) -> DraftSession:
    """Return a session whose guesses are all evaluated but the last."""
    session = DraftSession(opening())
    for guess in guesses:
        session.n_kv = len(session.tokens)
        session.add(DraftGuess(guess, 0.9))
    return session


def commit(*tokens: int, after_: tuple[int, ...] = ()) -> Commit:
    """Return a commit of these tokens after PROMPT and those of `after_`."""
    return Commit(1, len(PROMPT) + len(after_), after(*after_, *tokens), tokens)


def after(*tokens: int) -> int:
    """Return the chain hash after PROMPT and these tokens."""
    chain = chain_start(PROMPT)
    for token in tokens:
        chain = chain_next(chain, token)
    return chain


def test_a_path_that_agrees_is_kept():
    session = drafting(1, 2, 3, 4)
    assert session.commit(commit(1, 2))
    assert session.n_ahead == 2
    assert session.pending == [4]


def test_divergence_keeps_the_common_prefix():
    session = drafting(1, 2, 3, 4)
    assert session.commit(commit(1, 9))
    assert session.n_ahead == 0
    assert session.tokens == [*PROMPT, 1, 9]
    assert session.pending == [9]


def test_gap_includes_own_last_token():
    session = drafting(1, 2)
    assert session.commit(commit(1, 2, 3, 4))
    assert session.pending == [2, 3, 4]


def test_an_overlap_is_tolerated_if_it_agrees():
    session = drafting()
    assert session.commit(commit(1, 2))
    assert session.commit(commit(2, 3, after_=(1,)))
    assert session.commit(commit(1, 2))
    assert session.tokens == [*PROMPT, 1, 2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(commit(8, after_=(1, 2, 3)), id="a gap"),
        pytest.param(commit(9, 3, 4, after_=(1,)), id="an overlap that disagrees"),
        pytest.param(replace(commit(3, after_=(1, 2)), chain=5), id="another chain"),
    ],
)
def test_lost_session_waits_for_open(wrong: Commit):
    session = drafting(1, 2)
    assert session.commit(commit(1, 2))
    assert not session.commit(wrong)
    assert session.lost
    assert not session.commit(commit(3, after_=(1, 2)))
    session.reopen(opening((*PROMPT, 1, 7)))
    assert not session.lost
    assert session.tokens == [*PROMPT, 1, 7]
    assert session.pending == [7]


def test_repeated_open_publishes_path_again():
    session = drafting(1, 2, 3)
    next(session.take_drafts("d", 0))
    session.reopen(opening((*PROMPT, 1)))
    draft = next(session.take_drafts("d", 0))
    assert (draft.base, draft.chain, draft.tokens) == (4, after(1), (2, 3))
    assert session.pending == [3]


def test_overtaken_open_changes_nothing():
    session = drafting(1, 2, 3)
    session.commit(commit(1, 2))
    session.reopen(opening((*PROMPT, 1)))
    assert (session.n_committed, session.tokens) == (5, [*PROMPT, 1, 2, 3])


@pytest.mark.parametrize("changed", [opening(sampling=SamplingParams(1.0, seed=s)) for s in (3, 4)])
def test_new_sampling_drops_path_only(changed: Open):
    session = drafting(1, 2, 3)
    session.reopen(changed)
    assert (session.n_ahead, session.pending) == (0, [PROMPT[-1]])


@pytest.mark.parametrize(
    "nonsense",
    [
        {"temperature": math.nan},
        {"temperature": -1.0},
        {"temperature": 1e-308},
        {"min_p": 2.0},
        {"top_k": -1},
    ],
)
def test_nonsensical_sampling_is_not_mirrored(nonsense: dict[str, float]):
    assert DraftSession(opening(sampling=replace(SamplingParams(), **nonsense))).sampling == GREEDY


def test_drafts_continue_each_other():
    session = drafting()
    session.add(DraftGuess(1, 1.0))
    session.add(DraftGuess(2, 0.5))
    first = next(session.take_drafts("d", 9))
    assert (first.base, first.chain, first.tokens, first.parents) == (3, after(), (1, 2), (-1, 0))
    assert first.confidences == bytes([255, 128])
    session.add(DraftGuess(3, math.nan))
    second = next(session.take_drafts("d", 9))
    assert (second.base, second.chain, second.tokens) == (5, after(1, 2), (3,))
    assert second.confidences == b"\0"


def test_probabilities_are_of_what_is_not_committed():
    session = DraftSession(opening())
    third = DraftGuess(3, 0.6, 13, 0.3, third=23, third_confidence=0.1)
    for guess in (DraftGuess(1, 0.5, 11, 0.4), DraftGuess(2, 0.8), third):
        session.add(guess)
    (p, fork, guess), *others = session.alternatives()
    assert (p, fork, guess.token) == (0.4, 3, 11)
    branch = session.branch(3, guess)
    assert list(session.alternatives()) == others
    assert [(at, guess.token) for _, at, guess in others] == [(5, 13), (5, 23)]
    assert others[0][0] == pytest.approx(0.5 * 0.8 * 0.3)
    assert session.score_of(branch) == 0.4
    session.commit(commit(1))
    assert session.score == pytest.approx(0.8 * 0.6)
    (p, fork, guess), other = session.alternatives()
    assert (p, fork, other[0]) == (pytest.approx(0.8 * 0.3), 5, pytest.approx(0.8 * 0.1))
    branch = session.branch(fork, guess)
    branch.add(DraftGuess(14, 0.7))
    assert session.score_of(branch) == pytest.approx(0.8 * 0.3 * 0.7)
    assert list(session.alternatives()) == [other]
    session.commit(commit(2, 13, after_=(1,)))
    assert (session.tokens[-1], session.score) == (14, 0.7)


def test_long_path_fits_messages():
    session = drafting(*range(300))
    sizes = [len(draft.tokens) for draft in session.take_drafts("d", 0)]
    assert sizes == [MAX_NODES, 300 - MAX_NODES]
    assert session.n_unpublished == 0


def test_drafts_follow_a_divergence():
    session = drafting(1, 2)
    next(session.take_drafts("d", 0))
    session.commit(commit(4))
    session.add(DraftGuess(8, 1.0))
    draft = next(session.take_drafts("d", 0))
    assert (draft.base, draft.chain, draft.tokens) == (4, after(4), (8,))


def test_committed_guesses_are_not_published():
    session = drafting(1, 2, 3)
    session.commit(commit(1, 2))
    draft = next(session.take_drafts("d", 0))
    assert (draft.base, draft.chain, draft.tokens) == (5, after(1, 2), (3,))


RUN = st.lists(st.integers(0, 1), min_size=1, max_size=4)
STEP = st.one_of(
    st.tuples(st.just("guess"), RUN),
    st.tuples(st.just("commit"), RUN),
    st.tuples(st.just("repeat"), RUN),
    st.tuples(st.just("reopen"), RUN),
    st.tuples(st.just("publish"), RUN),
)


class Naive:
    """The lead's tokens, the path and the KV cache as plain lists.

    A commit compares token by token.
    """

    def __init__(self) -> None:
        self.committed: list[int] = [*PROMPT]
        self.path: list[int] = []
        self.cache: list[int] = []

    def guess(self, token: int) -> None:
        self.cache = self.committed + self.path
        self.path.append(token)

    def commit(self, tokens: list[int]) -> None:
        for token in tokens:
            if self.path[:1] == [token]:
                del self.path[0]
            else:
                self.path.clear()
            self.committed.append(token)
        known = self.committed + self.path
        n = next(
            (i for i, (a, b) in enumerate(zip(self.cache, known, strict=False)) if a != b), len(known) - 1
        )
        del self.cache[n:]


@given(st.lists(STEP, max_size=24))
def test_any_course_keeps_the_books(steps: list[tuple[str, list[int]]]):
    """Each guess of a step is made with all before it evaluated; a repeated commit begins before its end."""
    session, naive = drafting(), Naive()
    for what, tokens in steps:
        reply = naive.committed[len(PROMPT) :]
        if what == "guess":
            for token in tokens:
                session.n_kv = len(session.tokens)
                session.add(DraftGuess(token, 0.5))
                naive.guess(token)
        elif what == "publish" and session.n_unpublished:
            draft = next(session.take_drafts("d", 0))
            assert draft.chain == after(*session.tokens[len(PROMPT) : draft.base])
            assert list(draft.tokens) == session.tokens[draft.base :]
        elif what == "reopen":
            session.reopen(opening(tuple(naive.committed + tokens)))
            agrees = naive.path[: len(tokens)] == tokens
            naive.commit(tokens)
            assert agrees or not session.n_ahead
        elif what in ("commit", "repeat"):
            overlap = len(tokens) if what == "repeat" else 0
            known = reply[len(reply) - min(overlap, len(reply)) :]
            before = tuple(reply[: len(reply) - len(known)])
            assert session.commit(commit(*known, *tokens, after_=before))
            naive.commit(tokens)
        assert session.tokens == naive.committed + naive.path
        assert session.n_committed == len(naive.committed)
        assert session.tokens[: session.n_kv] == naive.cache
        assert session.score == 0.5**session.n_ahead
