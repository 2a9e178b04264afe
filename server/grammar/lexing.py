"""A grammar cut into lexemes without changing its language.

GBNF knows characters only; llguidance reads text through a lexer that prefers the longest match, and its
masks are quick where lexemes are long. So every largest part without recursion becomes one lexeme (a whole
grammar, if nothing in it recurs), and a lexeme that would swallow what belongs to the next is cut into its
parts, down to single characters, until none does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from server.grammar.follow import follows
from server.grammar.overlap import Automaton, automaton, swallows
from server.grammar.syntax import (
    ROOT,
    Budget,
    Chars,
    Choice,
    Lexeme,
    Node,
    Ref,
    Repeat,
    Rules,
    Series,
    Token,
    choice,
    lexemes,
    references,
    series,
)

MAX_LEXEME_CHARS = 50_000
MAX_LEXEME_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Lexed:
    """rules: those that the root needs; automata: of their lexemes."""

    rules: Rules
    automata: dict[Lexeme, Automaton]


def lex(rules: Rules, budget: Budget) -> Lexed:
    """Raises InvalidRequestError when the budget is used up."""
    sizes = _regular_sizes(rules, budget)
    apart: set[Node] = set()
    known: dict[Lexeme, Automaton] = {}
    while True:
        cut = _Cutter(rules, sizes, apart, budget).cut()
        for lexeme in lexemes(cut):
            if lexeme not in known:
                known[lexeme] = automaton(lexeme.node, rules, budget)
        automata = {lexeme: known[lexeme] for lexeme in lexemes(cut)}
        greedy = _greedy(cut, automata, budget)
        if not greedy:
            return Lexed(cut, automata)
        apart |= {lexeme.node for lexeme in greedy}


def _greedy(cut: Rules, automata: dict[Lexeme, Automaton], budget: Budget) -> set[Lexeme]:
    """Lexemes that would swallow what belongs to the next one."""
    follow = follows(cut, automata, budget)
    found: set[Lexeme] = set()
    for long, its_automaton in automata.items():
        for short, other in automata.items():
            budget.spend()
            if follow[short] and swallows(its_automaton, other, follow[short], budget):
                found.add(long)
                break
    return found


Size: TypeAlias = tuple[int, int]
"""Of a part without recursion, references followed: character sets in it, and depth."""


def _regular_sizes(rules: Rules, budget: Budget) -> dict[str, Size]:
    """Of the rules that can be one lexeme: no recursion, no tokens, not too large."""
    needs = {name: set(references(node)) for name, node in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, needed in needs.items():
        for other in needed:
            users[other].append(name)
    sizes: dict[str, Size] = {}
    todo = [name for name, needed in needs.items() if not needed]
    while todo:
        name = todo.pop()
        size = _size(rules[name], sizes, budget)
        if size is not None:
            sizes[name] = size
        for user in users[name]:
            needs[user].discard(name)
            if not needs[user]:
                todo.append(user)
    return sizes


def _size(node: Node, sizes: dict[str, Size], budget: Budget) -> Size | None:
    """None: this cannot be one lexeme."""
    budget.spend()
    match node:
        case Chars():
            return 1, 1
        case Token() | Lexeme():
            return None
        case Ref(name):
            return sizes.get(name)
        case Series(parts) | Choice(parts):
            inner = [_size(part, sizes, budget) for part in parts]
        case Repeat(part):
            inner = [_size(part, sizes, budget)]
    known = [size for size in inner if size is not None]
    n, depth = sum(n for n, _ in known), 1 + max((depth for _, depth in known), default=0)
    fits = len(known) == len(inner) and n <= MAX_LEXEME_CHARS and depth <= MAX_LEXEME_DEPTH
    return (n, depth) if fits else None


class _Cutter:
    """Cuts rules into lexemes, but for the nodes that must stay apart."""

    def __init__(self, rules: Rules, sizes: dict[str, Size], apart: set[Node], budget: Budget) -> None:
        self._rules, self._sizes, self._apart, self._budget = rules, sizes, apart, budget

    def cut(self) -> Rules:
        """The rules that the root needs."""
        result: dict[str, Node] = {}
        todo = [ROOT]
        while todo:
            name = todo.pop()
            if name not in result:
                result[name] = self._cut(self._rules[name])
                todo += references(result[name])
        return result

    def _whole(self, node: Node) -> bool:
        return isinstance(node, Chars) or (
            node not in self._apart and _size(node, self._sizes, self._budget) is not None
        )

    def _cut(self, node: Node) -> Node:
        self._budget.spend()
        if self._whole(node):
            return Lexeme(node)
        match node:
            case Series(parts):
                return Series(tuple(self._grouped(parts)))
            case Choice(options):
                return self._cut_choice(options)
            case Repeat(inner, least, most):
                loops = least <= 1 and most is None
                cut = self._cut_loop(inner) if loops else self._cut(inner)
                return Repeat(cut, least, most)
            case Chars():
                return Lexeme(node)
            case Token() | Ref() | Lexeme():
                return node

    def _grouped(self, parts: tuple[Node, ...]) -> list[Node]:
        """Neighbours that can be lexemes become one."""
        result: list[Node] = []
        group: list[Node] = []
        for part in (*parts, None):
            if part is not None and self._whole(part):
                group.append(part)
                continue
            if group:
                result += self._joined(group)
                group = []
            if part is not None:
                result.append(self._cut(part))
        return result

    def _joined(self, group: list[Node]) -> list[Node]:
        together = series(group)
        if self._whole(together):
            return [Lexeme(together)]
        return [Lexeme(part) for part in group]

    def _cut_loop(self, inner: Node) -> Node:
        """What goes round in a loop without counting: lexemes that are neighbours there become one."""
        options = inner.options if isinstance(inner, Choice) else (inner,)
        whole = [option for option in options if self._whole(option)]
        if not whole:
            return self._cut(inner)
        run = Repeat(choice(whole), 1, None)
        if not self._whole(run):
            return self._cut(inner)
        return Choice((Lexeme(run), *(self._cut(option) for option in options if option not in whole)))

    def _cut_choice(self, options: tuple[Node, ...]) -> Node:
        whole = [option for option in options if self._whole(option)]
        others = [self._cut(option) for option in options if not self._whole(option)]
        together = choice(whole) if whole else None
        if together is None:
            return Choice(tuple(others))
        if self._whole(together):
            return Choice((Lexeme(together), *others))
        return Choice((*map(Lexeme, whole), *others))
