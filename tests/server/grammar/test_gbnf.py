"""GBNF as text: what the notation means, and errors that say where."""

from __future__ import annotations

import pytest

from server.errors import InvalidRequestError
from server.grammar.gbnf import ANYTHING, MAX_CHARACTERS, MAX_NESTING, parse
from server.grammar.syntax import Chars, Choice, Node, Ref, Repeat, Series, Token
from tests.fake_backend import IM_END, IM_START, FakeVocabulary

A, B = Chars(((97, 97),)), Chars(((98, 98),))


def root(text: str) -> Node:
    return parse(f"root ::= {text}\nx ::= [a]\n", FakeVocabulary())["root"]


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ('"ab"', Series((A, B))),
        ('""', Series(())),
        ("x", Ref("x")),
        ("[a-cz]", Chars(((97, 99), (122, 122)))),
        ("[a-]", Chars(((45, 45), (97, 97)))),
        ("[ba]", Chars(((97, 98),))),
        ("[^b-\\U0010FFFF]", Chars(((0, 97),))),
        (r'"\x41\u00e9\U0001F600\n\"\\"', Series(tuple(Chars(((c, c),)) for c in map(ord, 'Aé😀\n"\\')))),
        (".", ANYTHING),
        ('"ab"*', Repeat(Series((A, B)), 0, None)),
        ('"a"{2}', Repeat(A, 2, 2)),
        ('"a" { 2 , }', Repeat(A, 2, None)),
        ('"a"{0,3} "b"?', Series((Repeat(A, 0, 3), Repeat(B, 0, 1)))),
        ('"a"{0} "b"', Series((Series(()), B))),
        ('"a" |\n  "b"', Choice((A, B))),
        ('(\n "a" # why\n "b"\n)', Series((A, B))),
        ('| "a"', Choice((Series(()), A))),
        ("<|im_start|> !<|im_end|>", Series((Token(IM_START), Token(IM_END, negated=True)))),
        ("<[98]>", Token(98)),
    ],
)
def test_notation(text: str, node: Node):
    assert root(text) == node


def test_comments_blank_lines_and_line_ends():
    rules = parse('# first\r\n\r\nroot ::= x-1 # then\r\n\r\nx-1 ::=\r\n  "a"', FakeVocabulary())
    assert rules == {"root": Ref("x-1"), "x-1": A}


def test_surrogates_are_no_characters():
    assert ANYTHING.ranges == ((0, 0xD7FF), (0xE000, 0x10FFFF))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the grammar has no rule named root"),
        ('x ::= "a"', "the grammar has no rule named root"),
        ("root ::= y", "line 1, column 10: the rule y is not defined"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule root is defined twice"),
        ('root = "a"', "line 1, column 6: expected ::="),
        ('root ::= "a" )', "line 1, column 14: unexpected ')'"),
        ('root ::=\n  ("a"', "line 2, column 3: this parenthesis is not closed"),
        ('root ::= "a', "line 1, column 10: this is not closed before the end of the line"),
        ("root ::= [a\n]", "line 1, column 10: this is not closed before the end of the line"),
        ("root ::= []", "line 1, column 10: no character matches this"),
        ("root ::= [^\\x00-\\U0010FFFF]", "line 1, column 10: no character matches this"),
        ("root ::= [z-a]", "line 1, column 10: the end of a range comes before its beginning"),
        (r'root ::= "\q"', "line 1, column 11: unknown escape \\q"),
        (r'root ::= "\x4"', "line 1, column 11: expected 2 hexadecimal digits"),
        (r'root ::= "\ud800"', "line 1, column 10: no character matches this"),
        (r'root ::= "\UFFFFFFFF"', "line 1, column 11: expected 8 hexadecimal digits"),
        ('root ::= "a"{x}', "line 1, column 13: expected {n}, {n,} or {n,m}"),
        ('root ::= "a"{3,2}', "line 1, column 13: repetitions go from a smaller number to a larger one"),
        ('root ::= "a"{9999}', "line 1, column 13: repetitions go from a smaller number to a larger one"),
        ("root ::= *", "line 1, column 10: unexpected '*'"),
        ("root ::= <|no_such|>", "line 1, column 10: <|no_such|> is 11 tokens of this model, not one"),
        ("root ::= <[259]>", "line 1, column 10: this model has no token 259"),
        ("root ::= <", "line 1, column 10: expected a token as <[id]> or <text>"),
        ("root ::= root", "line 1, column 1: the rule root matches no text: it never ends"),
        ('root ::= "a"\nx ::= "a" x', "line 2, column 1: the rule x matches no text: it never ends"),
        ("root ::= " + "(" * (MAX_NESTING + 1), f"column 60: more than {MAX_NESTING} parentheses"),
        ("#" * (MAX_CHARACTERS + 1), f"a grammar may have at most {MAX_CHARACTERS} characters"),
        ("\n".join(f'r{i} ::= "a"' for i in range(1001)), "line 1001, column 6: more than 1000 rules"),
        ("root ::= \ud800", "line 1, column 10: unexpected '\\ud800'"),
    ],
)
def test_errors_say_where(text: str, message: str):
    with pytest.raises(InvalidRequestError) as raised:
        parse(text, FakeVocabulary())
    assert message in raised.value.message
    assert raised.value.param == "grammar"
