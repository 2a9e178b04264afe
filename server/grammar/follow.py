"""What may come after each lexeme of a grammar: FIRST and FOLLOW sets, of first bytes."""

from __future__ import annotations

from collections.abc import Mapping

from server.grammar.overlap import SPECIAL, Automaton, Bytes
from server.grammar.syntax import Budget, Chars, Choice, Lexeme, Node, Ref, Repeat, Rules, Series, Token


def follows(rules: Rules, automata: Mapping[Lexeme, Automaton], budget: Budget) -> dict[Lexeme, Bytes]:
    """The bytes that may come right after each lexeme (none where the text ends). rules: cut into lexemes;
    automata: of all of them."""
    return _Follows(rules, automata, budget).run()


class _Follows:
    def __init__(self, rules: Rules, automata: Mapping[Lexeme, Automaton], budget: Budget) -> None:
        self._rules, self._budget = rules, budget
        self._begins = {lexeme: (one.begins, one.nullable) for lexeme, one in automata.items()}
        self._rule_begins = dict.fromkeys(rules, (0, False))
        self._after_rule: dict[str, Bytes] = dict.fromkeys(rules, 0)
        self._after: dict[Lexeme, Bytes] = dict.fromkeys(automata, 0)

    def run(self) -> dict[Lexeme, Bytes]:
        while (new := {name: self._first(node) for name, node in self._rules.items()}) != self._rule_begins:
            self._rule_begins = new
        before = None
        while before != self._after_rule:
            before = dict(self._after_rule)
            for name, node in self._rules.items():
                self._spread(node, self._after_rule[name])
        return self._after

    def _first(self, node: Node) -> tuple[Bytes, bool]:
        """The first bytes of the node's texts, and whether it matches the empty text."""
        self._budget.spend()
        match node:
            case Lexeme():
                return self._begins[node]
            case Token():
                return SPECIAL, False
            case Ref(name):
                return self._rule_begins[name]
            case Series(parts):
                first, nullable = 0, True
                for begins, skippable in map(self._first, parts):
                    first |= begins if nullable else 0
                    nullable = nullable and skippable
                return first, nullable
            case Choice(options):
                first, nullable = 0, False
                for begins, skippable in map(self._first, options):
                    first, nullable = first | begins, nullable or skippable
                return first, nullable
            case Repeat(inner, least):
                first, nullable = self._first(inner)
                return first, nullable or least == 0
            case Chars():
                raise AssertionError("characters are in lexemes")

    def _spread(self, node: Node, after: Bytes) -> None:
        """Add to what follows the lexemes and rules in the node that `after` may follow the node."""
        self._budget.spend()
        match node:
            case Lexeme():
                self._after[node] |= after
            case Ref(name):
                self._after_rule[name] |= after
            case Series(parts):
                for part in reversed(parts):
                    self._spread(part, after)
                    first, nullable = self._first(part)
                    after = first | (after if nullable else 0)
            case Choice(options):
                for option in options:
                    self._spread(option, after)
            case Repeat(inner, least, most):
                options = inner.options if isinstance(inner, Choice) else (inner,)
                loops = least <= 1 and most is None
                for option in options:
                    again = after
                    for other in options if most != 1 else ():
                        if not (loops and other is option and _is_run(option)):
                            again |= self._first(other)[0]
                    self._spread(option, again)
            case Token() | Chars():
                pass


def _is_run(node: Node) -> bool:
    """Two of these in a row are one of these, so a loop over it need not tell where one ends."""
    match node:
        case Lexeme(Repeat(_, least, None)):
            return least <= 1
        case _:
            return False
