"""What a grammar matches, said in the simplest way: sets of positions, slow and plainly right."""

from __future__ import annotations

from server.grammar.syntax import ROOT, Chars, Choice, Lexeme, Node, Ref, Repeat, Rules, Series, Token


def matches(rules: Rules, text: str) -> bool:
    """Return True if the whole text is in the language.

    By fixpoint, so that recursion of any kind ends.
    """
    found: dict[tuple[str, int], frozenset[int]] = {}

    def ends(node: Node, begin: int) -> frozenset[int]:
        match node:
            case Chars(ranges):
                inside = begin < len(text) and any(low <= ord(text[begin]) <= high for low, high in ranges)
                return frozenset({begin + 1} if inside else ())
            case Ref(name):
                return found.get((name, begin), frozenset())
            case Series(parts):
                return _chained(parts, begin)
            case Choice(options):
                return frozenset[int]().union(*(ends(option, begin) for option in options))
            case Repeat(inner, least, most):
                result = _chained((inner,) * least, begin)
                for _ in range(len(text) + 1 if most is None else most - least):
                    result |= frozenset(end for at in result for end in ends(inner, at))
                return result
            case Token() | Lexeme():
                raise AssertionError("tokens are not text")

    def _chained(parts: tuple[Node, ...], begin: int) -> frozenset[int]:
        result = frozenset({begin})
        for part in parts:
            result = frozenset(end for at in result for end in ends(part, at))
        return result

    while True:
        keys = [(name, begin) for name in rules for begin in range(len(text) + 1)]
        new = {(name, begin): ends(rules[name], begin) for name, begin in keys}
        if new == found:
            return len(text) in found[ROOT, 0]
        found = new
