"""Parse llama.cpp's grammar notation (GBNF) into a tree. Errors name line and column."""

from __future__ import annotations

import re
from typing import NoReturn

from server.errors import InvalidRequestError
from server.grammar.syntax import (
    EMPTY,
    MAX_CODE_POINT,
    ROOT,
    Budget,
    Chars,
    Ends,
    Node,
    Ref,
    Repeat,
    Token,
    choice,
    ends,
    normalised,
    series,
    walk,
)
from server.llama.backend import Vocabulary

MAX_CHARACTERS = 1 << 16  # maximum characters of a grammar, so that parsing takes half a second at most
MAX_RULES = 1000  # maximum rules of a grammar; usual ones have some dozens
MAX_NESTING = 50  # maximum nested parentheses: each takes four calls on Python's stack, which allows 1,000
MAX_REPETITIONS = 2000  # llama.cpp's own limit

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNTS = re.compile(r"\{\s*(\d{1,9})\s*(,?)\s*(\d{1,9})?\s*\}")
_TOKEN = re.compile(r"(!?)<(?:\[(\d{1,9})\]|([^<>\r\n]+))>")
_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", **{c: c for c in '\\"[]-'}}
_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
ANYTHING = Chars(normalised([(0, MAX_CODE_POINT)], negated=False))


def parse(text: str, vocabulary: Vocabulary) -> dict[str, Node]:
    """Return the rules of a grammar by name.

    One rule is named root, every referenced rule is defined, and every rule matches at least one text.

    Args:
        text: The grammar.
        vocabulary: Vocabulary of the tokens that the grammar writes as <text> or <[id]>.

    Raises:
        InvalidRequestError: The grammar is invalid; the message names line and column.
    """
    if len(text) > MAX_CHARACTERS:
        raise _invalid_grammar(f"a grammar may have at most {MAX_CHARACTERS} characters, not {len(text)}")
    parser = _Parser(text, vocabulary)
    rules = parser.rules()
    if ROOT not in rules:
        raise _invalid_grammar(f"the grammar has no rule named {ROOT}")
    for body in rules.values():
        for node in walk(body):
            if isinstance(node, Ref) and node.name not in rules:
                parser.fail(f"the rule {node.name} is not defined", node.at)
    for name in sorted(rules.keys() - productive(rules, Budget()), key=parser.defined_at.__getitem__):
        parser.fail(f"the rule {name} matches no text: it never ends", parser.defined_at[name])
    return rules


def _invalid_grammar(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="grammar")


def productive(rules: dict[str, Node], budget: Budget) -> set[str]:
    """Return the names of the rules that match at least one text."""

    def leaf(node: Node) -> Ends:  # that it matches something is all that counts here
        budget.spend()
        return 0, 0, not isinstance(node, Ref) or node.name in known

    def matches(node: Node) -> bool:
        return ends(node, leaf, lambda last, first: None)[2]

    known: set[str] = set()
    while found := {name for name, node in rules.items() if name not in known and matches(node)}:
        known |= found
    return known


class _Parser:
    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self._text = text
        self._vocabulary = vocabulary
        self._at = 0
        self._nesting = 0
        self.defined_at: dict[str, int] = {}

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        raise _invalid_grammar(f"invalid grammar, line {line}, column {column}: {message}")

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip_pattern(_BLANK_LINES)
        while self._at < len(self._text):
            begin, name = self._at, self._read_name()
            if name in rules:
                self.fail(f"the rule {name} is defined twice", begin)
            if len(rules) == MAX_RULES:
                self.fail(f"more than {MAX_RULES} rules")
            self.defined_at[name] = begin
            self._skip_pattern(_BLANK)
            if not self._take_character("::="):
                self.fail("expected ::=")
            self._skip_pattern(_BLANK_LINES)
            rules[name] = self._read_options()
            if self._at < len(self._text) and self._peek_character() not in "\r\n":
                self.fail(f"unexpected {self._peek_character()!r}")
            self._skip_pattern(_BLANK_LINES)
        return rules

    def _read_options(self) -> Node:
        options = [self._read_series()]
        while self._take_character("|"):
            self._skip_pattern(_BLANK_LINES)
            options.append(self._read_series())
        return choice(options)

    def _read_series(self) -> Node:
        """Read a sequence, which ends at |, at ) or, outside parentheses, at the end of the line."""
        parts: list[Node] = []
        blank = _BLANK_LINES if self._nesting else _BLANK
        while (part := self._read_part()) is not None:
            self._skip_pattern(blank)
            if (counts := self._read_repetition()) is not None:
                least, most = counts
                part = EMPTY if most == 0 else Repeat(part, least, most)
                self._skip_pattern(blank)
            parts.append(part)
        return series(parts)

    def _read_part(self) -> Node | None:
        begin = self._at
        if self._take_character('"'):
            return self._read_literal(begin)
        if self._take_character("["):
            return self._read_character_class(begin)
        if self._take_character("("):
            return self._read_group(begin)
        if self._take_character("."):
            return ANYTHING
        if self._peek_character() in ("<", "!"):
            return self._read_token()
        return Ref(self._read_name(), begin) if _NAME.match(self._peek_character()) else None

    def _read_group(self, begin: int) -> Node:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            self.fail(f"more than {MAX_NESTING} parentheses inside each other", begin)
        self._skip_pattern(_BLANK_LINES)
        node = self._read_options()
        if not self._take_character(")"):
            self.fail("this parenthesis is not closed", begin)
        self._nesting -= 1
        return node

    def _read_literal(self, begin: int) -> Node:
        parts: list[Node] = []
        while not self._take_character('"'):
            code = self._read_code_point(begin)
            parts.append(self._ranges_node([(code, code)], begin, negated=False))
        return series(parts)

    def _read_character_class(self, begin: int) -> Node:
        negated = self._take_character("^")
        ranges: list[tuple[int, int]] = []
        while not self._take_character("]"):
            low = high = self._read_code_point(begin)
            if self._peek_character() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._read_code_point(begin)
            if high < low:
                self.fail("the end of a range comes before its beginning", begin)
            ranges.append((low, high))
        return self._ranges_node(ranges, begin, negated=negated)

    def _ranges_node(self, ranges: list[tuple[int, int]], begin: int, *, negated: bool) -> Node:
        found = normalised(ranges, negated=negated)
        if not found:
            self.fail("no character matches this", begin)
        return Chars(found)

    def _read_code_point(self, begin: int) -> int:
        """Return the code point of the next character, literal or escaped."""
        at, c = self._at, self._peek_character()
        if not c or c in "\r\n":
            self.fail("this is not closed before the end of the line", begin)
        self._at += 1
        if c != "\\":
            return ord(c)
        escape = self._peek_character()
        self._at += 1
        if escape not in _HEX:
            return ord(_ESCAPES.get(escape) or self.fail(f"unknown escape \\{escape}", at))
        digits = self._text[self._at : self._at + _HEX[escape]]
        self._at += _HEX[escape]
        if not re.fullmatch(rf"[0-9A-Fa-f]{{{_HEX[escape]}}}", digits) or int(digits, 16) > MAX_CODE_POINT:
            self.fail(f"expected {_HEX[escape]} hexadecimal digits of a character", at)
        return int(digits, 16)

    def _read_repetition(self) -> tuple[int, int | None] | None:
        """Return (minimum, maximum) of the repetition after a part, None if there is none."""
        begin, c = self._at, self._peek_character()
        if c in _REPEATS:
            self._at += 1
            return _REPEATS[c]
        if c != "{":
            return None
        match = self._skip_pattern(_COUNTS)
        if not match or (match[3] and not match[2]):
            self.fail("expected {n}, {n,} or {n,m}", begin)
        least = int(match[1])
        most = int(match[3]) if match[3] else None if match[2] else least
        if max(least, most or 0) > MAX_REPETITIONS or (most is not None and most < least):
            self.fail(
                f"repetitions go from a smaller number to a larger one, at most {MAX_REPETITIONS}", begin
            )
        return least, most

    def _read_token(self) -> Node:
        begin, match = self._at, self._skip_pattern(_TOKEN)
        if not match:
            self.fail("expected a token as <[id]> or <text>")
        text = f"<{match[3]}>"
        ids = [int(match[2])] if match[2] else self._vocabulary.tokenize(text, special=True)
        if len(ids) != 1:
            self.fail(f"{text} is {len(ids)} tokens of this model, not one", begin)
        if not 0 <= ids[0] < self._vocabulary.size:
            self.fail(f"this model has no token {ids[0]}", begin)
        return Token(ids[0], bool(match[1]))

    def _read_name(self) -> str:
        match = self._skip_pattern(_NAME) or self.fail(
            f"expected the name of a rule, not {self._peek_character()!r}"
        )
        return match[0]

    def _peek_character(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take_character(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def _skip_pattern(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match
