"""What may come after each lexeme of a grammar: FIRST and FOLLOW sets, of first bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from server.grammar.cut import Cut, CutChoice, CutRepeat, CutRules, CutSeries, Lexeme
from server.grammar.overlap import SPECIAL, Automaton, Bytes
from server.grammar.syntax import Budget, Ref, Repeat, Token


def follows(rules: CutRules, automata: Mapping[Lexeme, Automaton], budget: Budget) -> dict[Lexeme, Bytes]:
    """The bytes that may come right after each lexeme (nothing, where the text ends)."""
    return _Follows(rules, automata, budget).run()


class _Follows:
    def __init__(self, rules: CutRules, automata: Mapping[Lexeme, Automaton], budget: Budget) -> None:
        self._rules, self._budget = rules, budget
        self._begins = {lexeme: (one.begins, one.nullable) for lexeme, one in automata.items()}
        self._rule_begins = dict.fromkeys(rules, (0, False))
        self._after_rule: dict[str, Bytes] = dict.fromkeys(rules, 0)
        self._after: dict[Lexeme, Bytes] = dict.fromkeys(automata, 0)

    def run(self) -> dict[Lexeme, Bytes]:
        while (new := {name: self._first(cut) for name, cut in self._rules.items()}) != self._rule_begins:
            self._rule_begins = new
        before = None
        while before != self._after_rule:
            before = dict(self._after_rule)
            for name, cut in self._rules.items():
                self._spread(cut, self._after_rule[name])
        return self._after

    def _first(self, cut: Cut) -> tuple[Bytes, bool]:
        """What its texts begin with, and whether the empty one is among them."""
        self._budget.spend()
        match cut:
            case Lexeme():
                return self._begins[cut]
            case Token():
                return SPECIAL, False
            case Ref(name):
                return self._rule_begins[name]
            case CutSeries(parts):
                first, nullable = 0, True
                for begins, skippable in map(self._first, parts):
                    first |= begins if nullable else 0
                    nullable = nullable and skippable
                return first, nullable
            case CutChoice(options):
                first, nullable = 0, False
                for begins, skippable in map(self._first, options):
                    first, nullable = first | begins, nullable or skippable
                return first, nullable
            case CutRepeat(inner, least):
                first, nullable = self._first(inner)
                return first, nullable or least == 0

    def _spread(self, cut: Cut, after: Bytes) -> None:
        """`after` may follow this: note what that means for the lexemes and rules in it."""
        self._budget.spend()
        match cut:
            case Lexeme():
                self._after[cut] |= after
            case Token():
                pass
            case Ref(name):
                self._after_rule[name] |= after
            case CutSeries(parts):
                for part in reversed(parts):
                    self._spread(part, after)
                    first, nullable = self._first(part)
                    after = first | (after if nullable else 0)
            case CutChoice(options):
                for option in options:
                    self._spread(option, after)
            case CutRepeat(inner, least, most):
                options = inner.options if isinstance(inner, CutChoice) else (inner,)
                for option in options:
                    merges = least <= 1 and most is None and _is_run(option)
                    again = (
                        0 if most == 1 else self._begin(o for o in options if not (merges and o is option))
                    )
                    self._spread(option, after | again)

    def _begin(self, options: Iterable[Cut]) -> Bytes:
        result = 0
        for option in options:
            result |= self._first(option)[0]
        return result


def _is_run(cut: Cut) -> bool:
    """Two of these in a row are one of these, so a loop over it need not tell where one ends."""
    return (
        isinstance(cut, Lexeme) and isinstance(cut.node, Repeat) and cut.node.least <= 1 and not cut.node.most
    )
