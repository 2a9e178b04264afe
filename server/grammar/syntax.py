"""Trees that represent the rules of grammars.

Nodes are values: equal trees are equal keys of a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from server.errors import InvalidRequestError

MAX_CODE_POINT = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)  # no text contains them
ROOT = "root"


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set.

    The set is given as ranges of code points, at least one. They ascend, are disjoint and include both ends.
    """

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A part that matches one token of the vocabulary or, if negated, any token but that one."""

    id: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to the rule of this name; `at` is its position in the grammar's text, for messages."""

    name: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Series:
    """A sequence of parts; without parts, the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A node repeated `least` to `most` times; most >= 1, or None for no maximum."""

    node: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A part of the grammar that the lexer reads as one unit. It may match the empty text."""

    node: Node


Node: TypeAlias = Chars | Token | Ref | Series | Choice | Repeat | Lexeme
Rules: TypeAlias = Mapping[str, Node]

EMPTY = Series(())


class Budget:
    """Limits the time to analyse one grammar: 500,000 steps of 1 to 3 µs, about a second."""

    def __init__(self, steps: int = 500_000) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Count steps of an analysis.

        Raises:
            InvalidRequestError: The budget is used up.
        """
        self._left -= steps
        if self._left < 0:
            raise InvalidRequestError("the grammar is too complex for this server", param="grammar")


def series(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Series(tuple(parts))


def choice(options: list[Node]) -> Node:
    return options[0] if len(options) == 1 else Choice(tuple(options))


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Series(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(inner):
            return (inner,)
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all nodes below it, without following references or entering lexemes."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        todo += children(node)


def references(node: Node) -> list[str]:
    return [below.name for below in walk(node) if isinstance(below, Ref)]


def lexemes(rules: Rules) -> dict[Lexeme, None]:
    """Return all lexemes in these rules as keys, in a fixed order."""
    return {below: None for node in rules.values() for below in walk(node) if isinstance(below, Lexeme)}


Ends: TypeAlias = tuple[int, int, bool]
"""(first elements of a node's texts, last elements, True if a text may be empty). Elements are bit sets."""


def ends(node: Node, leaf: Callable[[Node], Ends], link: Callable[[int, int], object]) -> Ends:
    """Return the first and last elements of a node's texts, and whether it matches the empty text.

    Elements are bit sets; `leaf` decides which bit stands for which element.

    Args:
        node: The node.
        leaf: Returns the result for a node without parts.
        link: Called with two sets: the last elements of a part, and the first elements that may follow them.
    """

    def of(node: Node) -> Ends:
        match node:
            case Series(parts):
                first, last, nullable = 0, 0, True
                for head, tail, skippable in map(of, parts):
                    link(last, head)
                    first |= head if nullable else 0
                    last = tail | (last if skippable else 0)
                    nullable = nullable and skippable
                return first, last, nullable
            case Choice(options):
                return _united_options(map(of, options))
            case Repeat(inner, least, most):
                options = inner.options if isinstance(inner, Choice) else (inner,)
                each = [(option, of(option)) for option in options]
                first, last, nullable = _united_options(one for _, one in each)
                for option, (_, tail, _) in each if most != 1 else ():
                    alone = least <= 1 and most is None and _is_run(option)
                    others = _united_options(one for other, one in each if other is not option)
                    link(tail, others[0] if alone else first)
                return first, last, nullable or least == 0
            case _:
                return leaf(node)

    return of(node)


def _united_options(options: Iterable[Ends]) -> Ends:
    first, last, nullable = 0, 0, False
    for head, tail, skippable in options:
        first, last, nullable = first | head, last | tail, nullable or skippable
    return first, last, nullable


def _is_run(node: Node) -> bool:
    """Return True if any two texts of the node, joined, are a text of the node too, as with runs of spaces.

    In a loop over such a node, one round can match what consecutive rounds match.
    """
    match node:
        case Lexeme(Repeat(_, least, None)):
            return least <= 1
        case _:
            return False


def normalised(ranges: list[tuple[int, int]], *, negated: bool) -> tuple[tuple[int, int], ...]:
    """Return disjoint, ascending ranges of these code points, or if `negated` of all other code points.

    Surrogates are left out. Ranges include both ends.
    """
    merged = _merged_ranges(ranges)
    if negated:
        starts = [0, *(high + 1 for _, high in merged)]
        ends = [*(low - 1 for low, _ in merged), MAX_CODE_POINT]
        merged = [(low, high) for low, high in zip(starts, ends, strict=True) if low <= high]
    below = [(low, min(high, SURROGATES[0] - 1)) for low, high in merged]
    above = [(max(low, SURROGATES[1] + 1), high) for low, high in merged]
    return tuple((low, high) for low, high in below + above if low <= high)


def _merged_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged
