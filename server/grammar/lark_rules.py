"""Parse grammars in Lark's notation, as OpenAI's custom tools use it, into a tree. Errors name the line."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from server.errors import InvalidRequestError
from server.grammar.regex_nodes import RegexError, regex_node
from server.grammar.syntax import EMPTY, Chars, Choice, Node, Ref, Repeat, Series, choice, series

MAX_CHARACTERS = 1 << 16
MAX_NESTING = 50
"""Maximum nesting of parentheses: each takes some calls of Python's stack, which allows 1,000."""
_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|//[^\n]*|\#[^\n]*)|(?P<line>\r?\n)|(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?!/)(?:\\.|[^/\\\n])+/[imslux]*)|(?P<arrow>->)|(?P<range>\.\.)|(?P<name>[?!]?[A-Za-z_]\w*)
    |(?P<number>\d{1,6})|(?P<directive>%\w+)|(?P<sign>[:|()\[\]?*+~{},.])""",
    re.VERBOSE,
)
_COMMON = {
    "DIGIT": r"[0-9]", "HEXDIGIT": r"[a-fA-F0-9]", "INT": r"[0-9]+", "SIGNED_INT": r"[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    "NUMBER": r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]", "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+", "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*", "WS_INLINE": r"[ \t]+", "WS": r"[ \t\f\r\n]+",
    "CR": r"\r", "LF": r"\n", "NEWLINE": r"(\r?\n)+", "SH_COMMENT": r"#[^\n]*", "CPP_COMMENT": r"//[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
}  # fmt: skip
"""Terminals of Lark's own library."""


class _Word(NamedTuple):
    kind: str
    text: str
    line: int


def lark_rules(text: str) -> dict[str, Node]:
    """Return the rules of a grammar by name. The rule `start` matches a whole text.

    Raises:
        InvalidRequestError: The text is not Lark or not supported; the message names the line.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequestError(f"a grammar may have at most {MAX_CHARACTERS} characters, not {len(text)}")
    return _Rules(_words(text)).all()


def _words(text: str) -> list[_Word]:
    found, at, line = list[_Word](), 0, 1
    while at < len(text):
        word = _TOKEN.match(text, at)
        if word is None:
            raise _invalid_grammar(line, f"unexpected {text[at]!r}")
        kind = word.lastgroup or ""
        if kind != "blank":
            found.append(_Word(kind, word[0], line))
        line += kind == "line"
        at = word.end()
    return [*found, _Word("end", "", line)]


def _invalid_grammar(line: int, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"invalid grammar, line {line}: {why}")


class _Rules:
    def __init__(self, words: list[_Word]) -> None:
        self._words = words
        self._at = 0
        self._nesting = 0
        self._rules: dict[str, Node] = {}
        self._mentioned: dict[str, int] = {}  # line that mentions a rule or terminal, by its name
        self._ignored: list[Node] = []

    def all(self) -> dict[str, Node]:
        while self._peek_word().kind != "end":
            word = self._take_word()
            match word.kind:
                case "line":
                    continue
                case "directive":
                    self._read_directive(word)
                case "name":
                    self._read_rule(word)
                case _:
                    self._fail_at(word)
        for name, line in {"start": 1, **self._mentioned}.items():
            if name not in self._rules:
                raise _invalid_grammar(line, f"there is no rule {name}")
        return self._with_ignored() if self._ignored else self._rules

    def _peek_word(self, ahead: int = 0) -> _Word:
        return self._words[min(self._at + ahead, len(self._words) - 1)]

    def _take_word(self) -> _Word:
        word = self._peek_word()
        self._at += 1
        return word

    def _take_if(self, text: str) -> bool:
        found = self._peek_word().text == text
        self._at += found
        return found

    def _fail_at(self, word: _Word) -> NoReturn:
        raise _invalid_grammar(word.line, f"unexpected {word.text or 'end'!r}")

    def _read_directive(self, word: _Word) -> None:
        if word.text == "%ignore":
            self._ignored.append(self._read_options())
        elif word.text == "%import":
            self._read_import()
        else:
            raise _invalid_grammar(word.line, f"{word.text} is not supported")

    def _read_import(self) -> None:
        library = self._take_word()
        if library.text != "common":
            raise _invalid_grammar(library.line, "only terminals of common can be imported")
        names = list[_Word]()
        if self._take_if("."):
            names.append(self._take_word())
        elif self._take_if("("):
            while not self._take_if(")"):
                names.append(self._take_word())
                self._take_if(",")
        alias = self._take_word().text if self._peek_word().kind == "arrow" and self._take_word() else None
        for name in names:
            if name.text not in _COMMON:
                raise _invalid_grammar(name.line, f"common has no {name.text}")
            self._rules[alias or name.text] = regex_node(_COMMON[name.text])

    def _read_rule(self, word: _Word) -> None:
        name = word.text.lstrip("?!")
        if self._take_if("."):  # a priority, which does not change what texts match
            self._take_word()
        if not self._take_if(":"):
            self._fail_at(self._peek_word())
        if name in self._rules:
            raise _invalid_grammar(word.line, f"the rule {name} is defined twice")
        self._rules[name] = self._read_options()

    def _read_options(self) -> Node:
        options = [self._read_series()]
        while self._goes_on():
            options.append(self._read_series())
        return choice(options)

    def _goes_on(self) -> bool:
        """Skip the | before another alternative, and line ends before it; return True if there is one."""
        n = 0
        while self._peek_word(n).kind == "line":
            n += 1
        found = self._peek_word(n).text == "|" and self._peek_word(n).kind == "sign"
        self._at += n + 1 if found else 0
        return found

    def _read_series(self) -> Node:
        parts = list[Node]()
        while self._peek_word().kind in ("string", "regex", "name") or self._peek_word().text in ("(", "["):
            parts.append(self._read_repetition(self._read_atom()))
        if self._peek_word().kind == "arrow":
            self._at += 2
        return series(parts)

    def _read_repetition(self, node: Node) -> Node:
        counts = {"?": (0, 1), "*": (0, None), "+": (1, None)}
        if (sign := self._peek_word().text) in counts:
            self._at += 1
            return Repeat(node, *counts[sign]) if node != EMPTY else EMPTY
        if sign not in ("~", "{"):
            return node
        self._at += 1
        least = most = self._read_number()
        if self._take_if("..") or (sign == "{" and self._take_if(",")):
            most = self._read_number() if self._peek_word().kind == "number" else None
        if sign == "{" and not self._take_if("}"):
            self._fail_at(self._peek_word())
        return EMPTY if most == 0 or node == EMPTY else Repeat(node, least, most)

    def _read_number(self) -> int:
        word = self._take_word()
        if word.kind != "number":
            self._fail_at(word)
        return int(word.text)

    def _read_atom(self) -> Node:
        word = self._take_word()
        if word.text in ("(", "["):
            return self._read_group(word)
        if word.kind == "name":
            self._mentioned.setdefault(word.text, word.line)
            return Ref(word.text)
        if word.kind == "regex":
            body, _, flags = word.text[1:].rpartition("/")
            return self._read_regex(body.replace("\\/", "/"), flags, word.line)
        text = self._read_string(word)
        if self._take_if(".."):
            last = self._read_string(self._take_word())
            if not (len(text) == len(last) == 1 and text <= last):
                raise _invalid_grammar(word.line, "a range needs two characters in order")
            return Chars(((ord(text), ord(last)),))
        return self._read_regex(re.escape(text), "i" if word.text.endswith("i") else "", word.line)

    def _read_group(self, word: _Word) -> Node:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise _invalid_grammar(word.line, f"more than {MAX_NESTING} parentheses within each other")
        node = self._read_options()
        while self._peek_word().kind == "line":
            self._at += 1
        if not self._take_if(")" if word.text == "(" else "]"):
            self._fail_at(self._peek_word())
        self._nesting -= 1
        return node if word.text == "(" or node == EMPTY else Repeat(node, 0, 1)

    def _read_string(self, word: _Word) -> str:
        if word.kind != "string":
            self._fail_at(word)
        try:
            return str(ast.literal_eval(word.text.removesuffix("i")))
        except (ValueError, SyntaxError):
            raise _invalid_grammar(word.line, "a string has an escape that is none") from None

    def _read_regex(self, text: str, flags: str, line: int) -> Node:
        try:
            return regex_node(text, flags)
        except RegexError as error:
            raise _invalid_grammar(line, str(error)) from None

    def _with_ignored(self) -> dict[str, Node]:
        """Return the rules; text that %ignore names may now begin a text and follow each terminal."""
        ignored = Repeat(choice(self._ignored), 0, None)
        rules = {
            name: node if name.isupper() else _behind_terminals(node, ignored)
            for name, node in self._rules.items()
        }
        return {**rules, "start": series([ignored, rules["start"]])}


def _behind_terminals(node: Node, ignored: Node) -> Node:
    def again(parts: tuple[Node, ...], join: Callable[[list[Node]], Node]) -> Node:
        return join([_behind_terminals(part, ignored) for part in parts])

    match node:
        case Ref(name) if not name.isupper():
            return node
        case Choice(options):
            return again(options, choice)
        case Series(parts) if parts and not all(isinstance(part, Chars) for part in parts):
            return again(parts, series)
        case Repeat(inner, least, most) if not isinstance(inner, Chars):
            return Repeat(_behind_terminals(inner, ignored), least, most)
        case _:
            return series([node, ignored])
