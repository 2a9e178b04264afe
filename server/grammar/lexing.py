"""Cut a grammar into lexemes without changing its language.

GBNF describes characters. llguidance reads text through a lexer, which prefers the longest match, and
computes masks quickly if lexemes are long. So each lexeme is a part without recursion that is as large as
possible (the whole grammar if it has no recursion). A lexeme that would take characters of the next lexeme is
cut into its parts, if necessary down to single characters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from typing import TypeAlias

from server.grammar.overlap import Automaton, automaton, follows, swallows
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
    children,
    choice,
    lexemes,
    references,
    series,
)

MAX_LEXEME_CHARS = 50_000  # character sets of a lexeme, its automaton's states: a tenth of Budget's steps
MAX_LEXEME_DEPTH = 200  # nested nodes of a lexeme: Python's stack allows 1,000 calls


@dataclass(frozen=True, slots=True)
class Lexed:
    """A grammar whose rules consist of lexemes, the units that a lexer recognises."""

    rules: Rules  # the rules that the root needs
    automata: dict[Lexeme, Automaton]  # the automaton of each lexeme


def lex(rules: Rules, budget: Budget) -> Lexed:
    """Cut a grammar into lexemes.

    Raises:
        InvalidRequestError: The budget is used up.
    """
    sizes = _regular_sizes(rules, budget)
    apart: set[Node] = set()
    known: dict[Lexeme, Automaton] = {}
    while True:
        cut = _Cutter(rules, sizes, apart, budget).cut()
        found = lexemes(cut)
        known |= {one: automaton(one.node, rules, budget) for one in found if one not in known}
        automata = {one: known[one] for one in found}
        greedy = _greedy_lexemes(cut, automata, budget)
        if not greedy:
            return Lexed(cut, automata)
        apart |= {lexeme.node for lexeme in greedy}


def _greedy_lexemes(cut: Rules, automata: dict[Lexeme, Automaton], budget: Budget) -> set[Lexeme]:
    """Return the lexemes that would take characters of the following lexeme."""
    follow = follows(cut, automata, budget)
    return {
        lexeme
        for lexeme, long in automata.items()
        if any(swallows(long, short, follow[other], budget) for other, short in automata.items())
    }


Size: TypeAlias = tuple[int, int]
"""(number of character sets, nesting depth) of a part without recursion, including referenced rules."""


def _regular_sizes(rules: Rules, budget: Budget) -> dict[str, Size]:
    """Return the sizes of the rules that can be one lexeme: no recursion or tokens, and small enough."""
    order = TopologicalSorter({name: references(node) for name, node in rules.items()})
    with suppress(CycleError):
        order.prepare()  # so rules that depend on a circle of rules never become ready
    sizes: dict[str, Size] = {}
    while names := order.get_ready():
        for name in names:
            if (size := _lexeme_size(rules[name], sizes, budget)) is not None:
                sizes[name] = size
        order.done(*names)
    return sizes


def _lexeme_size(node: Node, sizes: dict[str, Size], budget: Budget) -> Size | None:
    """Return the size of a node, None if it cannot be one lexeme."""
    budget.spend()
    match node:
        case Chars():
            return 1, 1
        case Token() | Lexeme():
            return None
        case Ref(name):
            inner = [sizes.get(name)]
        case _:
            inner = [_lexeme_size(part, sizes, budget) for part in children(node)]
    known = [size for size in inner if size is not None]
    n, depth = sum(n for n, _ in known), 1 + max((depth for _, depth in known), default=0)
    fits = len(known) == len(inner) and n <= MAX_LEXEME_CHARS and depth <= MAX_LEXEME_DEPTH
    return (n, depth) if fits else None


class _Cutter:
    """Cuts rules into lexemes; nodes in `apart` are cut even if they could be one lexeme."""

    def __init__(self, rules: Rules, sizes: dict[str, Size], apart: set[Node], budget: Budget) -> None:
        self._rules, self._sizes, self._apart, self._budget = rules, sizes, apart, budget

    def cut(self) -> Rules:
        """Return the rules that the root needs, cut into lexemes."""
        result: dict[str, Node] = {}
        todo = [ROOT]
        while todo:
            name = todo.pop()
            if name not in result:
                result[name] = self._cut_node(self._rules[name])
                todo += references(result[name])
        return result

    def _is_whole(self, node: Node) -> bool:
        """Return True if the node becomes one lexeme."""
        return isinstance(node, Chars) or (
            node not in self._apart and _lexeme_size(node, self._sizes, self._budget) is not None
        )

    def _cut_node(self, node: Node) -> Node:
        self._budget.spend()
        if self._is_whole(node):
            return Lexeme(node)
        match node:
            case Series(parts):
                cut: list[Node] = []
                for whole, group in groupby(parts, self._is_whole):
                    nodes = list(group)
                    cut += self._join_if_whole(nodes, series) if whole else map(self._cut_node, nodes)
                return Series(tuple(cut))
            case Choice(options):
                whole, others = self._part_options(options)
                return Choice((*self._join_if_whole(whole, choice), *others))
            case Repeat(inner, least, most):
                loops = least <= 1 and most is None
                return Repeat(self._cut_loop(inner) if loops else self._cut_node(inner), least, most)
            case Token() | Ref() | Lexeme() | Chars():
                return node

    def _part_options(self, options: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """Return the options that become lexemes, and the other options cut into lexemes."""
        whole = [option for option in options if self._is_whole(option)]
        return whole, [self._cut_node(option) for option in options if not self._is_whole(option)]

    def _join_if_whole(self, nodes: list[Node], join: Callable[[list[Node]], Node]) -> list[Node]:
        """Join the nodes to one lexeme if that is possible; else return a lexeme for each node."""
        together = [join(nodes)] if nodes else []
        return [Lexeme(node) for node in (together if all(map(self._is_whole, together)) else nodes)]

    def _cut_loop(self, inner: Node) -> Node:
        """Return the body of an unbounded loop, cut into lexemes.

        The options that can each be a lexeme become one lexeme, which matches any number of consecutive
        rounds of them.
        """
        whole, others = self._part_options(inner.options if isinstance(inner, Choice) else (inner,))
        run = Repeat(choice(whole), 1, None)
        return Choice((Lexeme(run), *others)) if whole and self._is_whole(run) else self._cut_node(inner)
