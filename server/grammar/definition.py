"""Read definitions, in Lark or as a regular expression, of the input that a custom tool takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

from server.errors import InvalidRequestError
from server.grammar.gbnf import productive
from server.grammar.lark import part_of_lark
from server.grammar.lark_rules import lark_rules
from server.grammar.lexing import lex
from server.grammar.regex_nodes import RegexError, regex_node
from server.grammar.syntax import (
    EMPTY,
    ROOT,
    Budget,
    Chars,
    Choice,
    Node,
    Ref,
    Repeat,
    Series,
    choice,
    series,
)

KEYWORD = "\udfffgrammar"
"""Keyword in a string's schema; its value is the definition that the string must match.

No request contains this keyword, since lone surrogates are read as U+FFFD.
"""
INPUT = "input"
"""Name of the only parameter of the function that represents a custom tool."""
_START = "start"
_BACKSLASH = Chars(((0x5C, 0x5C),))
_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}


@dataclass(frozen=True, slots=True)
class Definition:
    """A grammar or regular expression of the texts that a custom tool takes."""

    syntax: Literal["lark", "regex"]
    text: str

    def rules(self) -> dict[str, Node]:
        """Return the definition's rules by name. The rule `start` matches a whole text.

        Raises:
            InvalidRequestError: The definition cannot be used; the message names the line.
        """
        return _rules_of(self)

    def held(self, end: Node, *, in_json: bool, prefix: str) -> tuple[str, list[str]]:
        """Return rules in llguidance's Lark that match a text of this definition, followed by `end`.

        Args:
            end: Node that matches what follows the text.
            in_json: True if the text is within a JSON string.
            prefix: Prefix of the rules' names, of lower-case letters and digits.

        Returns:
            The name of the first rule, and all rules.
        """
        rules = self.rules()
        if in_json:
            rules = {name: _escaped_for_json(node) for name, node in rules.items()}
        whole = {**rules, ROOT: series([Ref(_START), end])}
        return part_of_lark(lex(whole, Budget()), whole, prefix)

    @property
    def as_json(self) -> dict[str, str]:
        return {"syntax": self.syntax, "definition": self.text}


def input_of_custom(schema: Mapping[str, Any]) -> Definition | None:
    """Return the definition of a custom tool's input, None without one. `schema`: of the tool's arguments."""
    properties = cast(Mapping[str, Any], schema.get("properties") or {})
    found = properties.get(INPUT)
    return definition_of(cast(Mapping[str, Any], found)) if isinstance(found, Mapping) else None


def text_node(text: str) -> Node:
    """Return a tree that matches exactly this text."""
    return series([Chars(((ord(sign), ord(sign)),)) for sign in text])


def custom_parameters(syntax: Literal["lark", "regex"] | None = None, definition: str = "") -> dict[str, Any]:
    """Return the schema of the arguments of a function that represents a custom tool: one string.

    Args:
        syntax: Syntax of the definition; None: the string may be any text.
        definition: The definition that the string must match.
    """
    held = {KEYWORD: Definition(syntax, definition).as_json} if syntax else {}
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string", **held}},
        "required": [INPUT],
        "additionalProperties": False,
    }


def definition_of(schema: Mapping[str, Any]) -> Definition | None:
    """Return the definition in the schema of a string, None if it has none."""
    found = schema.get(KEYWORD)
    return Definition(found["syntax"], found["definition"]) if found else None


def check_definition(syntax: Literal["lark", "regex"], definition: str, param: str) -> None:
    """Raise an error for a definition that cannot be used.

    Raises:
        InvalidRequestError: The definition cannot be used; the message names the field `param` and the line.
    """
    try:
        Definition(syntax, definition).held(EMPTY, in_json=True, prefix="c")
    except InvalidRequestError as error:
        raise InvalidRequestError(str(error), param=param) from None


@lru_cache(maxsize=64)
def _rules_of(definition: Definition) -> dict[str, Node]:
    if definition.syntax == "regex":
        try:
            return {_START: regex_node(definition.text)}
        except RegexError as error:
            raise InvalidRequestError(f"invalid regular expression: {error}") from None
    found = lark_rules(definition.text)
    for name in sorted(found.keys() - productive(found, Budget())):
        raise InvalidRequestError(f"invalid grammar: the rule {name} matches no text, since it never ends")
    return found


def _escaped_for_json(node: Node) -> Node:
    """Return a tree that matches the texts of `node` after they are escaped as within a JSON string."""
    match node:
        case Chars(ranges):
            return _escaped_chars(ranges)
        case Series(parts):
            return Series(tuple(map(_escaped_for_json, parts)))
        case Choice(options):
            return Choice(tuple(map(_escaped_for_json, options)))
        case Repeat(inner, least, most):
            return Repeat(_escaped_for_json(inner), least, most)
        case _:
            return node


def _escaped_chars(ranges: tuple[tuple[int, int], ...]) -> Node:
    plain: list[tuple[int, int]] = []
    special: list[int] = []
    for low, high in ranges:
        for start, end in ((0x20, 0x21), (0x23, 0x5B), (0x5D, high)):
            plain += [(max(low, start), min(high, end))] * (max(low, start) <= min(high, end))
        special += [code for code in (*range(0x20), 0x22, 0x5C) if low <= code <= high]
    options: list[Node] = [Chars(tuple(plain))] * bool(plain)
    short = sorted(ord(_ESCAPES[code]) for code in special if code in _ESCAPES)
    if short:
        options.append(Series((_BACKSLASH, Chars(tuple((code, code) for code in short)))))
    rare = (code for code in special if code not in _ESCAPES)
    return choice([*options, *(series([_BACKSLASH, text_node(f"u{code:04x}")]) for code in rare)])
