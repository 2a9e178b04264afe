"""Where grammars are cut: as little as their meaning allows, because long lexemes make quick masks."""

from __future__ import annotations

import pytest

from server.errors import InvalidRequestError
from server.grammar.gbnf import parse
from server.grammar.lexing import lex
from server.grammar.overlap import automaton, first_bytes, swallows
from server.grammar.syntax import Budget, Chars, Lexeme, Repeat, lexemes
from tests.fake_backend import FakeVocabulary
from tests.server.grammar.grammars import CHESS, JSON, LIST, TAGGED


def cut(grammar: str) -> list[Lexeme]:
    return list(lexemes(lex(parse(grammar, FakeVocabulary()), Budget()).rules))


@pytest.mark.parametrize("grammar", [LIST, CHESS, 'root ::= [a-z]* "x" | "in" [a-z] | "int("'])
def test_non_recursive_rule_is_one_lexeme(grammar: str):
    assert len(cut(grammar)) == 1


@pytest.mark.parametrize("grammar", [JSON, TAGGED])
def test_texts_inside_a_recursion_stay_whole(grammar: str):
    characters = [one for one in cut(grammar) if isinstance(one.node, Chars) and len(one.node.ranges) > 1]
    assert characters == []


def test_greedy_lexeme_is_cut_down():
    nodes = {lexeme.node for lexeme in cut('root ::= name root "x" | name "="\nname ::= [a-z]*')}
    assert Chars(((97, 122),)) in nodes
    assert not any(isinstance(node, Repeat) for node in nodes)


def test_neighbours_in_a_loop_are_one_lexeme():
    nodes = [lexeme.node for lexeme in cut('root ::= ([a-z] | "<" root ">")*')]
    assert Repeat(Chars(((97, 122),)), 1, None) in nodes


def test_a_loop_that_counts_keeps_them_apart():
    nodes = [lexeme.node for lexeme in cut('root ::= ([a-z] | "<" root ">"){2,}')]
    assert Chars(((97, 122),)) in nodes


@pytest.mark.parametrize(
    ("long", "short", "follow", "expected"),
    [
        ("[a-z]+", '"in"', "t", True),
        ("[a-z]+", '"in"', "(", False),
        ('"int"', '"in"', "t", True),
        ('"int"', '"in"', "n", False),
        ('"in"', '"int"', "t", False),
        ("[a-z]+", "[a-z]+", "a", True),
        ("[a-z]+ [0-9]?", "[a-z]+", "0", True),
        ('"x" [a-z]+', '"in"', "t", False),
        ('"é"+', '"é"', "è", True),
        ('("ab" | "cd")* "e"', '"abcd"', "a", True),
        ('("ab" | "cd")* "e"', '"abcd"', "b", False),
        ('"aa"{0,2}', '"aaaa"', "a", True),  # counts are not counted: on the safe side
    ],
)
def test_swallowing(long: str, short: str, follow: str, expected: bool):
    def compiled(text: str):
        rules = parse(f"root ::= {text}", FakeVocabulary())
        return automaton(rules["root"], rules, Budget())

    byte = 1 << follow.encode()[0]
    assert swallows(compiled(long), compiled(short), byte, Budget()) is expected


@pytest.mark.parametrize(
    ("low", "high", "first", "last"),
    [(0, 0x7F, 0, 0x7F), (0x61, 0xE9, 0x61, 0xC3), (0x800, 0x10FFFF, 0xE0, 0xF4), (0x80, 0x80, 0xC2, 0xC2)],
)
def test_first_bytes_of_a_range(low: int, high: int, first: int, last: int):
    assert first_bytes(Chars(((low, high),))) == sum(1 << byte for byte in range(first, last + 1))


def test_a_budget_ends():
    budget = Budget(3)
    budget.spend(3)
    with pytest.raises(InvalidRequestError, match="too complex"):
        budget.spend()
