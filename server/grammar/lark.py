"""Write a lexed grammar in llguidance's dialect of Lark, with Rust's regular expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.grammar.exact_classes import json_expression
from server.grammar.lexing import Lexed
from server.grammar.syntax import ROOT, Chars, Choice, Lexeme, Node, Ref, Repeat, Rules, Series, Token

# With this option masks do not depend on how a tokeniser would split forced text: they allow exactly the
# tokens that n_allowed() does.
_HEADER = '%llguidance {"no_forcing": true}'
# White space allowed in JSON, about as in llama.cpp: a blank, or a new line and its indentation. It is
# bounded, since weak models may write white space without end. It overrides what a schema says.
_JSON = {"x-guidance": {"whitespace_pattern": r"[ ]|\n{1,2}[ \t]{0,40}"}}
_NOT_EMPTY = "/(?s:.+)/"  # the lexer knows no empty lexeme, so lexemes that may be empty become optional


def as_written(lark: str) -> str:
    """Return a complete grammar: a header with duo's options for llguidance, and the given Lark rules."""
    return f"{_HEADER}\n{lark}\n"


def schema_to_lark(schema: Mapping[str, Any]) -> str:
    """Return a grammar of the JSON texts that fit a schema."""
    return as_written(f"start: {json_expression(schema, _JSON)}")


def to_lark(lexed: Lexed, rules: Rules) -> str:
    """Return a lexed grammar in Lark. `rules`: the grammar before lexing, to look up references."""
    _, lines = part_of_lark(lexed, rules)
    return "\n".join([_HEADER, *lines]) + "\n"


def part_of_lark(lexed: Lexed, rules: Rules, prefix: str = "") -> tuple[str, list[str]]:
    """Return a lexed grammar as rules in Lark, for use within another grammar.

    Args:
        lexed: The grammar, cut into lexemes.
        rules: The grammar before lexing. Its rules are looked up for references within lexemes.
        prefix: Prefix of the names of all rules.

    Returns:
        The name of the root rule, and the text of each rule.
    """
    start = f"{prefix}start"
    names = {name: start if name == ROOT else f"{prefix}rule_{i}" for i, name in enumerate(lexed.rules)}
    terminals = {lexeme: f"{prefix.upper()}LEXEME_{i}" for i, lexeme in enumerate(lexed.automata)}
    lines: list[str] = []
    for lexeme, terminal in terminals.items():
        automaton = lexed.automata[lexeme]
        if automaton.reads:
            also = f" & {_NOT_EMPTY}" if automaton.nullable else ""
            lines.append(f"{terminal}: /{_node_regex(lexeme.node, rules)}/{also}")

    def show(node: Node) -> str:
        match node:
            case Lexeme():
                automaton = lexed.automata[node]
                if not automaton.reads:
                    return '""'
                return terminals[node] + ("?" if automaton.nullable else "")
            case Token(id, negated):
                return f"<[^{id}]>" if negated else f"<[{id}]>"
            case Ref(name):
                return names[name]
            case Series(parts):
                return f"({' '.join(map(show, parts))})"
            case Choice(options):
                return f"({' | '.join(map(show, options))})"
            case Repeat(inner, least, most):
                return f"({show(inner)}){_repetition(least, most)}"
            case Chars():
                raise AssertionError("characters are in lexemes")

    lines += [f"{names[name]}: {show(node)}" for name, node in lexed.rules.items()]
    return start, lines


def _repetition(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return f"{{{least},{most}}}"


def _node_regex(node: Node, rules: Rules) -> str:
    match node:
        case Chars(((low, high),)) if low == high:
            return _character_text(low)
        case Chars(ranges):
            inside = [
                _character_text(a) if a == b else f"{_character_text(a)}-{_character_text(b)}"
                for a, b in ranges
            ]
            return f"[{''.join(inside)}]"
        case Series(parts):
            return "".join(_node_regex(part, rules) for part in parts)
        case Choice(options):
            return f"(?:{'|'.join(_node_regex(option, rules) for option in options)})"
        case Repeat(inner, least, most):
            return f"(?:{_node_regex(inner, rules)}){_repetition(least, most)}"
        case Ref(name):
            return _node_regex(rules[name], rules)
        case Token() | Lexeme():
            raise AssertionError("a lexeme has neither tokens nor lexemes in it")


def _character_text(code: int) -> str:
    c = chr(code)
    return c if c.isascii() and c.isalnum() else f"\\u{{{code:x}}}"
