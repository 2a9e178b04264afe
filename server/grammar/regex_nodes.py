"""Parse regular expressions into trees of characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from re import _constants as kinds  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from typing import Any, TypeAlias, cast

from server.grammar.syntax import EMPTY, MAX_CODE_POINT, Chars, Node, Repeat, choice, normalised, series

_Parsed: TypeAlias = tuple[Any, Any]
_Ranges: TypeAlias = list[tuple[int, int]]
_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "u": re.UNICODE, "l": 0}
_CLASSES: dict[str, _Ranges] = {
    "DIGIT": [(0x30, 0x39)],
    "SPACE": [(0x09, 0x0D), (0x20, 0x20)],
    "WORD": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
}
"""Code points of the classes \\d, \\s and \\w: ASCII only, as tools of Rust and JavaScript mean them."""


class RegexError(ValueError):
    """The regular expression is invalid, or a grammar cannot express it."""


def regex_node(text: str, flags: str = "") -> Node:
    """Return a tree that matches the texts that the regular expression matches from beginning to end.

    Args:
        text: The expression.
        flags: Letters of _FLAGS.

    Raises:
        RegexError: The expression is invalid, or a grammar of characters cannot express it.
    """
    try:
        parsed = cast(Any, parser).parse(text, sum(_FLAGS[flag] for flag in set(flags)))
    except (re.error, RecursionError, OverflowError) as error:
        raise RegexError(str(error)) from None
    return _Converter(int(parsed.state.flags)).sequence(cast(Iterable[_Parsed], parsed))


class _Converter:
    def __init__(self, flags: int) -> None:
        self._flags = flags

    def sequence(self, parsed: Iterable[_Parsed]) -> Node:
        parts = [self._node_of(str(kind), value) for kind, value in parsed]
        return series([part for part in parts if part != EMPTY])

    def _node_of(self, kind: str, value: Any) -> Node:
        known = self._by_kind.get(kind)
        if known is None:
            raise RegexError(f"{kind.lower().replace('_', ' ')} is not supported")
        return known(self, value)

    def _any_character(self, _: Any) -> Node:
        newline: _Ranges = [] if self._flags & re.DOTALL else [(0x0A, 0x0A)]
        return Chars(normalised(newline, negated=True))

    def _literal_node(self, code: int, *, negated: bool = False) -> Node:
        return Chars(normalised(self._in_both_cases([(code, code)]), negated=negated))

    def _set_node(self, items: Iterable[_Parsed]) -> Node:
        ranges: _Ranges = []
        negated = False
        for kind, value in items:
            match str(kind):
                case "NEGATE":
                    negated = True
                case "LITERAL":
                    ranges.append((value, value))
                case "RANGE":
                    ranges.append(value)
                case _:
                    ranges += _class_ranges(str(value))
        return _chars_of(self._in_both_cases(ranges), negated=negated)

    def _in_both_cases(self, ranges: _Ranges) -> _Ranges:
        """Add the other case of ASCII letters if case is ignored."""
        if not self._flags & re.IGNORECASE:
            return ranges
        more: _Ranges = []
        for low, high in ranges:
            for first, last, other in ((0x41, 0x5A, 0x20), (0x61, 0x7A, -0x20)):
                start, end = max(low, first), min(high, last)
                more += [(start + other, end + other)] * (start <= end)
        return ranges + more

    def _repeat_node(self, value: Any) -> Node:
        least, most, inner = value
        last = None if most is kinds.MAXREPEAT else int(most)
        node = self.sequence(inner)
        return EMPTY if last == 0 or node == EMPTY else Repeat(node, int(least), last)

    _by_kind: dict[str, Callable[[Any, Any], Node]] = {  # noqa: RUF012 - a table
        "LITERAL": _literal_node,
        "NOT_LITERAL": lambda self, code: self._literal_node(code, negated=True),
        "ANY": _any_character,
        "IN": _set_node,
        "BRANCH": lambda self, value: choice([self.sequence(option) for option in value[1]]),
        "SUBPATTERN": lambda self, value: self.sequence(value[3]),
        "MAX_REPEAT": _repeat_node,
        "MIN_REPEAT": _repeat_node,
        "AT": lambda self, value: _edge_of(str(value)),
    }


def _edge_of(kind: str) -> Node:
    if kind not in ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING"):
        raise RegexError("word boundaries are not supported")
    return EMPTY  # an anchor: the whole text is matched anyway


def _class_ranges(name: str) -> _Ranges:
    negated = "NOT_" in name
    ranges = _CLASSES[name.removeprefix("CATEGORY_").removeprefix("NOT_")]
    return list(normalised(ranges, negated=negated))


def _chars_of(ranges: _Ranges, *, negated: bool) -> Node:
    found = normalised([(low, min(high, MAX_CODE_POINT)) for low, high in ranges], negated=negated)
    if not found:
        raise RegexError("a set of characters is empty")
    return Chars(found)
