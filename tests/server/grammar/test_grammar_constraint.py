"""What a compiled grammar lets through: exactly its language, over the toy vocabulary."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits

from server.errors import InvalidRequestError
from server.grammar.compiler import Compiler, prepare
from server.grammar.gbnf import parse
from server.grammar.grammar_constraint import compile_gbnf, compile_json_schema
from server.sampling.constraint import Constraint
from tests.fake_backend import END_OF_TEXT, IM_END, IM_START, FakeVocabulary
from tests.server.grammar.grammars import ARITHMETIC, GREEDY, JSON, USUAL
from tests.server.grammar.reference import matches

VOCABULARY = FakeVocabulary()
GRAMMARS = {**USUAL, **GREEDY}


def accepts(constraint: Constraint, text: str) -> bool:
    """Return True if this is a whole text, asked token by token."""
    for token in text.encode():
        if not constraint.allows(token):
            return False
        constraint.accept(token)
    return constraint.allows(IM_END)


def stroll(constraint: Constraint, rng: random.Random, n_most: int) -> str | None:
    """Return a text drawn from the masks and ended where it may end, or None if it goes on."""
    text = bytearray()
    for _ in range(n_most):
        allowed: list[int] = np.flatnonzero(constraint.mask()).tolist()
        assert allowed
        if IM_END in allowed and (len(allowed) == 2 or rng.random() < 0.2):
            return text.decode()
        token = rng.choice([token for token in allowed if token not in VOCABULARY.eog])
        assert constraint.n_allowed((token,)) == 1
        constraint.accept(token)
        text.append(token)
    return None


@pytest.mark.parametrize("name", GRAMMARS)
def test_masked_draws_stay_in_language(name: str):
    rules = parse(GRAMMARS[name], VOCABULARY)
    start = compile_gbnf(VOCABULARY, GRAMMARS[name])
    rng = random.Random(5)
    texts = [text for _ in range(60) if (text := stroll(start(), rng, 60)) is not None]
    assert len(texts) >= 1
    for text in texts:
        assert len(text) > 25 or matches(rules, text), text


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (JSON, '{"a":[1,-2.5e+3, true,{}],"\\u00e9":"é\\n"}'),
        (JSON, '""'),
        (ARITHMETIC, "(a+b1)*3 - x_y = 42\n7=7\n"),
        (USUAL["c-like"], "if (a<=b==1){\nint=inty+(2);\nreturn  x;\n// é{\n}\n"),
        (USUAL["list"], "- one\n- zwei, drei\n"),
        (USUAL["chess"], "1. e4 e5\n2. Nf3 Nc6\n3. Bb5+ a6\n4. Bxc6 dxc6\n5. O-O f8=Q#\n"),
        (USUAL["tagged"], "<a>text<a></a>more</a>"),
        (GREEDY["a class that takes in what follows"], "(abxcx)"),
        (GREEDY["one keyword inside another"], "int"),
        (GREEDY["one keyword inside another"], "int(inz)"),
        (GREEDY["anything, then an end"], "a.b..c."),
        (GREEDY["two characters with one first byte"], "(ééè)"),
        (GREEDY["counted"], "aaabaab"),
        (GREEDY["alternatives of different lengths"], "abcabbcac"),
        (GREEDY["left recursion"], "baaba"),
    ],
)
def test_texts_of_the_language_pass(grammar: str, text: str):
    assert accepts(compile_gbnf(VOCABULARY, grammar)(), text)
    assert not accepts(compile_gbnf(VOCABULARY, grammar)(), text + "\x00")
    assert matches(parse(grammar, VOCABULARY), text)


ATOMS = st.sampled_from(['"a"', '"b"', '"ab"', '"é"', '"è"', "[ab]", "[^a]", "[è-é]", '""', "root", "x"])
COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{2,}", "{0,2}"])
BODIES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(" ".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"({' | '.join(options)})"),
        st.tuples(inner, COUNTS).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)


@settings(max_examples=150)
@given(root=BODIES, x=BODIES, texts=st.lists(st.text("abéè", max_size=6), min_size=8, max_size=8))
def test_any_grammar_means_what_it_says(root: str, x: str, texts: list[str]):
    grammar = f'root ::= {root} | "b"\nx ::= {x} | "a"\n'
    rules, start = parse(grammar, VOCABULARY), compile_gbnf(VOCABULARY, grammar)
    for text in texts:
        assert accepts(start(), text) == matches(rules, text), text


def test_each_call_begins_a_new_text():
    start = compile_gbnf(VOCABULARY, 'root ::= "ab"')
    first, second = start(), start()
    first.accept(ord("a"))
    assert [first.allows(ord("a")), first.allows(ord("b"))] == [False, True]
    assert [second.allows(ord("a")), second.allows(ord("b"))] == [True, False]


def test_complete_text_allows_every_end():
    constraint = compile_gbnf(VOCABULARY, 'root ::= "a" "b"?')()
    assert np.flatnonzero(constraint.mask()).tolist() == [ord("a")]
    assert not constraint.allows(IM_END)
    constraint.accept(ord("a"))
    assert np.flatnonzero(constraint.mask()).tolist() == [ord("b"), IM_END, END_OF_TEXT]
    constraint.accept(ord("b"))
    assert constraint.allows(IM_END)
    assert constraint.allows(END_OF_TEXT)
    assert np.flatnonzero(constraint.mask()).tolist() == [IM_END, END_OF_TEXT]


@pytest.mark.parametrize("last", [ord("z"), IM_START, IM_END])
def test_forbidden_token_ends_the_constraint(last: int):
    constraint = compile_gbnf(VOCABULARY, 'root ::= "a"+ "b"')()
    constraint.accept(ord("a"))
    constraint.accept(last)
    assert constraint.mask().all()
    assert constraint.allows(ord("z"))
    assert constraint.n_allowed((1, 2, IM_START)) == 3
    assert constraint.forced() == ()
    constraint.accept(ord("a"))
    assert constraint.mask().all()


def test_end_token_ends_the_constraint():
    constraint = compile_gbnf(VOCABULARY, 'root ::= "a"+')()
    constraint.accept(ord("a"))
    constraint.accept(END_OF_TEXT)
    assert constraint.allows(ord("z"))


def test_control_tokens_are_not_text():
    constraint = compile_gbnf(VOCABULARY, "root ::= .* root?")()
    assert np.flatnonzero(~constraint.mask()).tolist() == [*range(0x80, 0xC2), *range(0xF5, 0x100), IM_START]
    assert constraint.n_allowed(tuple(b"<|im_start|>")) == 12


def test_control_tokens_may_be_asked_for():
    constraint = compile_gbnf(VOCABULARY, 'root ::= <|im_start|> [a-z]+ !<[98]> "."')()
    assert np.flatnonzero(constraint.mask()).tolist() == [IM_START]
    constraint.accept(IM_START)
    constraint.accept(ord("x"))
    assert constraint.allows(IM_START)  # any token but b
    constraint.accept(IM_START)
    assert constraint.forced() == (ord("."),)


def test_forced_tokens_are_what_must_follow():
    constraint = compile_gbnf(VOCABULARY, 'root ::= "{\\"name\\":" ("true" | "tree") "é}"')()
    assert bytes(constraint.forced()) == b'{"name":tr'
    for token in b'{"name":':
        constraint.accept(token)
    assert bytes(constraint.forced()) == b"tr"
    for token in b"tre":
        constraint.accept(token)
    assert bytes(constraint.forced()) == "eé}".encode()
    for token in "eé}".encode():
        constraint.accept(token)
    assert not set(constraint.forced()) - VOCABULARY.eog


def test_n_allowed_changes_nothing():
    constraint = compile_gbnf(VOCABULARY, JSON)()
    assert constraint.n_allowed(tuple(b'{"a":1}')) == 7
    assert constraint.n_allowed((*b'{"a":1}', IM_END)) == 8
    assert constraint.n_allowed(tuple(b'{"a"1}')) == 4
    assert constraint.n_allowed(tuple(b"x")) == 0
    assert constraint.n_allowed(()) == 0
    assert constraint.allows(ord("{"))
    assert not constraint.allows(ord("}"))


def test_the_mask_cannot_be_written_to():
    mask = compile_gbnf(VOCABULARY, JSON)().mask()
    assert mask.shape == (VOCABULARY.size,)
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = True


def test_unspellable_text_may_only_end():
    class NoB(FakeVocabulary):
        def piece(self, token: int, *, special: bool = False) -> bytes:
            return b"" if token == ord("b") else super().piece(token, special=special)

    constraint = compile_gbnf(NoB(), 'root ::= "a" "b"')()
    constraint.accept(ord("a"))
    assert np.flatnonzero(constraint.mask()).tolist() == [IM_END, END_OF_TEXT]
    assert constraint.allows(IM_END)


def refusal(compile: Callable[[], object]) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as raised:
        compile()
    return raised.value


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= r900\nr0 ::= [ab]\n" + "\n".join(f"r{i} ::= r{i - 1} r{i - 1}" for i in range(1, 901)),
        'root ::= "(" root ")" | ' + " | ".join(f'"item{i * 7919 % 100_000}"' for i in range(3000)),
        "\n".join(
            ["root ::= r1"]
            + [
                f'r{i} ::= "k{i}" [a-z]* r{i * 7 % 900 + 1}? | [a-m]+ r{i * 11 % 900 + 1}'
                for i in range(1, 901)
            ]
        ),
    ],
    ids=["doubling", "3000 alternatives in a recursion", "900 rules in circles"],
)
def test_slow_grammar_is_refused(grammar: str):
    error = refusal(lambda: compile_gbnf(VOCABULARY, grammar))
    assert error.message == "the grammar is too complex for this server"
    assert error.param == "grammar"


def test_limit_breach_fails_the_request():
    constraint = compile_gbnf(VOCABULARY, "root ::= root root | root root root | . | [a-z]")()

    def go_on():
        for _ in range(2000):
            if constraint.allows(ord("a")):
                constraint.accept(ord("a"))

    assert "the grammar cannot be used: " in refusal(go_on).message


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def long_text(*, guessing: bool) -> None:
    """Write a text beyond the LIMITS of a step: each character has a state of its own."""
    state = compile_json_schema(FakeVocabulary(), {"type": "string", "maxLength": 50_000})()
    for byte in b'"' + b"a" * 20_000:
        if guessing:
            state.forced()
            state.n_allowed(b"a" * 16)
        assert state.allows(byte)
        state.accept(byte)


@pytest.mark.parametrize("guessing", [False, True])
def test_limits_apply_per_step(guessing: bool):
    long_text(guessing=guessing)


def test_guesses_beyond_limits_are_skipped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "server.grammar.grammar_constraint.LIMITS",
        LLParserLimits(max_lexer_states=600, verbose_errors=False),
    )
    grammar = compile_json_schema(FakeVocabulary(), {"type": "string", "maxLength": 5_000})
    state = grammar()
    state.accept(ord('"'))
    assert state.n_allowed(b"a" * 300 + b"\n") == 300
    assert state.n_allowed(b"a" * 1_000) < 1_000
    state.accept(ord("a"))
    assert state.n_allowed(b"a\n") == 2
    assert state.forced() == ()
    assert grammar.worn  # for the guesses of later texts
    for byte in b"a" * 300:
        assert state.allows(byte)
        state.accept(byte)
    assert not state.allows(ord("\n"))


def test_a_json_schema_describes_what_is_drawn():
    start = compile_json_schema(VOCABULARY, SCHEMA)
    rng = random.Random(2)
    texts = [text for _ in range(40) if (text := stroll(start(), rng, 200)) is not None]
    assert len(texts) > 5
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert accepts(start(), '{"name": "Ada", "age": 36}')
    assert not accepts(start(), '{"name": "Ada"}')


def test_a_vocabulary_is_prepared_once():
    class Counted(FakeVocabulary):
        n_pieces = 0

        def piece(self, token: int, *, special: bool = False) -> bytes:
            Counted.n_pieces += 1
            return super().piece(token, special=special)

    vocabulary = Counted()
    compile_gbnf(vocabulary, 'root ::= "a"')
    n = Counted.n_pieces
    compile_gbnf(vocabulary, JSON)
    assert Counted.n_pieces == n > 0


def test_unspellable_beginning_is_refused():
    class NoA(FakeVocabulary):
        def piece(self, token: int, *, special: bool = False) -> bytes:
            return b"" if token == ord("a") else super().piece(token, special=special)

    error = refusal(lambda: compile_gbnf(NoA(), 'root ::= "a"'))
    assert error.message == "no token of this model can begin what the grammar wants"


class CountingVocabulary(FakeVocabulary):
    def __init__(self) -> None:
        super().__init__()
        self.n_asked = 0

    def piece(self, token: int, *, special: bool = False) -> bytes:
        self.n_asked += 1
        return super().piece(token, special=special)


def test_the_first_grammar_waits_for_nothing():
    vocabulary = CountingVocabulary()
    prepare(vocabulary)
    n_asked = vocabulary.n_asked
    assert vocabulary.size <= n_asked < 1.5 * vocabulary.size
    state = Compiler(vocabulary).json_object()()
    assert vocabulary.n_asked == n_asked
    assert state.allows(ord("{"))
    assert not state.allows(IM_START)
