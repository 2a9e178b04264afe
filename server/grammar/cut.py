"""A grammar over lexemes: the same rules, with the parts that the lexer reads in one go as leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from server.grammar.syntax import Node, Ref, Token


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A part of the grammar that the lexer reads in one go. May match the empty text."""

    node: Node


@dataclass(frozen=True, slots=True)
class CutSeries:
    parts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class CutChoice:
    options: tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class CutRepeat:
    node: Cut
    least: int
    most: int | None


Cut: TypeAlias = Lexeme | Token | Ref | CutSeries | CutChoice | CutRepeat
CutRules: TypeAlias = dict[str, Cut]


def below(cut: Cut) -> tuple[Cut, ...]:
    match cut:
        case CutSeries(inner) | CutChoice(inner):
            return inner
        case CutRepeat(inner):
            return (inner,)
        case _:
            return ()


def leaves(cut: Cut) -> list[Cut]:
    found: list[Cut] = []
    todo = [cut]
    while todo:
        cut = todo.pop()
        inner = below(cut)
        todo += inner
        if not inner:
            found.append(cut)
    return found


def references(cut: Cut) -> list[str]:
    return [leaf.name for leaf in leaves(cut) if isinstance(leaf, Ref)]


def lexemes(rules: CutRules) -> dict[Lexeme, None]:
    """In a fixed order."""
    return {leaf: None for cut in rules.values() for leaf in leaves(cut) if isinstance(leaf, Lexeme)}
