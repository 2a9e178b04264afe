"""Definitions of custom tools: the language that they say, and where they are wrong."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidRequestError
from server.grammar.compiler import Compiler
from server.grammar.definition import Definition, check_definition, custom_parameters, text_node
from tests.fake_backend import IM_END, FakeVocabulary

COMPILER = Compiler(FakeVocabulary())


def takes(syntax: str, definition: str, text: str, *, in_json: bool = False) -> bool:
    assert syntax in ("lark", "regex")
    name, rules = Definition(syntax, definition).held(text_node('"'), in_json=in_json, prefix="c0_")
    state = COMPILER.lark("\n".join([f"start: {name}", *rules]), "x")()
    spelled = json.dumps(text, ensure_ascii=False)[1:-1] if in_json else text
    for token in [*f'{spelled}"'.encode(), IM_END]:
        if not state.allows(token):
            return False
        state.accept(token)
    return True


@pytest.mark.parametrize("in_json", [False, True])
@pytest.mark.parametrize(
    ("lark", "right", "wrong"),
    [
        ('start: "a" | "b"+ // a comment\n', ["a", "b", "bbb"], ["", "ab"]),
        ("start: x ~ 2..3\n# another\nx: /[ab]/i", ["aB", "bbb"], ["a", "abab"]),
        ("start: x{2}\nx.3: [A] B?\nA: /a/\nB: \"b\"", ["ab", "", "aa", "b"], ["aaa"]),
        ('?start: "\\"" /[^"]/ "\\n\\t\\\\" -> name', ['"x\n\t\\'], ['""\n\t\\']),
        ('start: "1".."3" | "ä"', ["2", "ä"], ["4", "a"]),
        ("start: NUMBER (\",\" NUMBER)*\n%import common.NUMBER\n%import common (WS, LF)\n%ignore WS",
         ["1, 2.5 ,\n3e4", " 1 "], ["1 2", "1,,2"]),
        ("start: value\nvalue: \"[\" value* \"]\"", ["[[][[]]]"], ["[[]", ""]),
        ("start: \"a\"\n     | \"b\"\n\n     | \"c\"", ["a", "b", "c"], ["d"]),
        ("start: CN\n%import common.CNAME -> CN", ["_a1"], ["1a"]),
        ("start: /a\\/b.c/s", ["a/b\nc"], ["a/bc"]),
    ],
)  # fmt: skip
def test_lark(lark: str, right: list[str], wrong: list[str], in_json: bool):
    assert [takes("lark", lark, text, in_json=in_json) for text in right] == [True] * len(right)
    assert [takes("lark", lark, text, in_json=in_json) for text in wrong] == [False] * len(wrong)


REGEXES = [
    r"a|b{2,3}c?",
    r"[^a-c\n]+",
    r"\d\w\s",
    r"(?:a(?P<n>b))*",
    r"(?i)aB[c-d]",
    r".{0,2}",
    r"\\\"?[\]\"]",
    r"^a+?$",
]


@pytest.mark.parametrize("in_json", [False, True])
@pytest.mark.parametrize("regex", REGEXES)
@given(text=st.text('abcdABCD1 \n\t\\"]é', max_size=5))
def test_a_regex_is_pythons(regex: str, text: str, in_json: bool):
    if '"' in text and not in_json:
        return  # it ends the text here
    matches = re.compile(regex, re.ASCII).fullmatch(text) is not None
    assert takes("regex", regex, text, in_json=in_json) == matches


def test_control_characters_have_escapes_in_json():
    for code in range(0x20):
        assert takes("regex", r"[\x00-\x1f]", chr(code), in_json=True)


@pytest.mark.parametrize(
    ("lark", "why"),
    [
        ("begin: \"a\"", "line 1: there is no rule start"),
        ("start: a\n\nb: \"x\"", "line 1: there is no rule a"),
        ("start: \"a\nb: \"", "line 1: unexpected '\"'"),
        ("start: /(a/", "line 1: missing )"),
        ("start: \"x\"\nA: /a(?=b)/", "line 2: assert is not supported"),
        ("start: \"x\"\n%declare A", "line 2: %declare is not supported"),
        ("start: \"x\"\n%import python.NAME", "line 2: only terminals of common"),
        ("start: \"x\"\n%import common.NAME", "line 2: common has no NAME"),
        ("start: \"x\"\nstart: \"y\"", "line 2: the rule start is defined twice"),
        ("start: \"a\" start", "the rule start matches no text"),
        ("start: " + "(" * 60 + "\"a\"" + ")" * 60, "more than 50 parentheses"),
        ("start: \"b\"..\"a\"", "a range needs two characters in order"),
        ("start: (\"a\"", "unexpected 'end'"),
        ("x" * 70_000, "at most 65536 characters"),
    ],
)  # fmt: skip
def test_wrong_definition_names_its_line(lark: str, why: str):
    with pytest.raises(InvalidRequestError, match=re.escape(why)) as caught:
        check_definition("lark", lark, "tools.0.custom")
    assert caught.value.param == "tools.0.custom"


@pytest.mark.parametrize("regex", ["(", "a(?!b)", r"(a)\1", r"\bx", "[^\\s\\S]", "(" * 2000])
def test_a_wrong_regex_is_refused(regex: str):
    with pytest.raises(InvalidRequestError, match="invalid regular expression") as caught:
        check_definition("regex", regex, "x")
    assert caught.value.param == "x"


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of Python's parser, about doubtful sets
@given(st.text('start:"a|()[]~{}/.%\n ', max_size=40))
def test_any_text_is_a_definition_or_refused(text: str):
    for syntax in ("lark", "regex"):
        with suppress(InvalidRequestError):
            check_definition(syntax, text, "x")


def test_parameters_are_a_strict_object():
    assert custom_parameters()["required"] == ["input"]
    assert custom_parameters("regex", "a")["properties"]["input"]["type"] == "string"
