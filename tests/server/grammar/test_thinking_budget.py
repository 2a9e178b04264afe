"""A budget ends thoughts, exactly where it says, and changes nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine.request import GenerationRequest, Speculation
from server.grammar.compiler import Compiler
from server.grammar.thinking_budget import ThinkingBudget, ThoughtLimit
from server.sampling.params import SamplingParams
from tests.fake_backend import FakeVocabulary
from tests.support import Harness, OracleProposer

VOCABULARY = FakeVocabulary()
CLOSE = b"</think>"


def limit(most: int, *, opened: bool = True) -> ThoughtLimit:
    return ThoughtLimit(most, "<think>", "</think>", "</think>", opened)


def budget(most: int, *, opened: bool = True, lark: str | None = None) -> ThinkingBudget:
    inner = Compiler(VOCABULARY).lark(lark, "tools") if lark else None
    return limit(most, opened=opened).start(VOCABULARY, inner)()


def written(state: ThinkingBudget, wanted: bytes) -> bytes:
    """Return what a model writes that wants this text; forced text comes between."""
    told = b""
    for byte in wanted:
        while state.forced():
            told += bytes([state.forced()[0]])
            state.accept(state.forced()[0])
        assert state.allows(byte)
        assert state.mask()[byte]
        state.accept(byte)
        told += bytes([byte])
    return told


def test_budget_closes_thoughts():
    assert written(budget(3), b"hm, yes") == b"hm,</think> yes"
    assert written(budget(0), b"yes") == b"</think>yes"
    assert written(budget(100), b"hm</think>yes") == b"hm</think>yes"


def test_character_ends_before_thoughts_close():
    """Behind half a character a grammar would let everything through."""
    state = budget(2, lark='start: t "yes"\nt[lazy]: /(?s:.*)/ "</think>"')
    assert written(state, "aé".encode()) == "aé".encode()
    for _ in CLOSE:
        state.accept(state.forced()[0])
    assert bytes(state.forced()) == b"yes"


def test_thoughts_that_the_model_opens_itself():
    assert written(budget(2, opened=False), b"so <think>hm, yes") == b"so <think>hm</think>, yes"
    assert written(budget(2, opened=False), b"no thoughts at all") == b"no thoughts at all"
    opened_twice = b"<think>h</think>a<think>hm, yes"
    left = budget(11, opened=False)
    assert written(left, opened_twice) == b"<think>h</think>a<think>hm</think>, yes"


def test_limit_allows_only_the_ending():
    state = budget(1)
    assert state.n_allowed(b"hm") == 1
    state.accept(ord("h"))
    assert state.forced() == tuple(CLOSE)
    assert not state.allows(ord("m"))
    assert state.mask().nonzero()[0].tolist() == [CLOSE[0]]
    assert state.n_allowed(b"</tx") == 3
    assert state.n_allowed(CLOSE + b"x") == len(CLOSE)


def test_a_grammar_holds_beside_it():
    lark = 'start: thought "yes"\nthought[lazy]: /(?s:.*)/ "</think>"'
    state = budget(4, lark=lark)
    assert written(state, b"hm, ") == b"hm, "
    for token in CLOSE:
        state.accept(token)
    assert state.forced() == tuple(b"yes")
    assert not state.allows(ord("n"))


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize(
    "gbnf", ['root ::= [0-9]+ "."', 'root ::= [0-9<]+ "."', 'root ::= "12"? "<"? [a-z0-9]+ "."']
)
def test_other_grammar_holds_after_limit(gbnf: str, most: int):
    state = limit(most).start(VOCABULARY, Compiler(VOCABULARY).gbnf(gbnf))()
    assert written(state, b"123"[:most]) == b"123"[:most]
    for token in CLOSE:
        assert state.forced()[0] == token
        state.accept(token)
    assert not state.allows(ord("!"))
    assert not state.mask().all()
    assert written(state, b"34.") == b"34."
    assert set(state.mask().nonzero()[0].tolist()) == VOCABULARY.eog


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("most", [0, 1, 7])
def test_drafts_across_the_limit_change_nothing(most: int, temperature: float):
    ask = GenerationRequest(
        prompt=list(b"think about it"),
        sampling=SamplingParams(temperature=temperature, seed=5),
        max_tokens=40,
        stop_tokens=frozenset(),
        speculation=Speculation(),
        constraint=limit(most).start(VOCABULARY, None),
    )
    [plain] = Harness().run(ask)
    assert plain.tokens[most : most + len(CLOSE)] == tuple(CLOSE)
    for wrong_every in (0, 3):
        proposer = OracleProposer([[*ask.prompt, *plain.tokens]], wrong_every=wrong_every)
        [drafted] = Harness(proposer=proposer).run(ask)
        assert drafted.tokens == plain.tokens
        assert proposer.accepted
    free = replace(ask, constraint=None)
    [unlimited] = Harness().run(free)
    assert unlimited.tokens[:most] == plain.tokens[:most]
