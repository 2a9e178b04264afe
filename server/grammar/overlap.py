"""Find where a lexer that prefers the longest match would misread a grammar.

The lexer continues a lexeme as long as it can. It misreads a text if the lexeme has already matched, and the
next characters begin what follows the lexeme in the grammar, but can also continue the lexeme, or another
lexeme that begins at the same position. The test errs on the safe side: it examines only the first bytes of
characters, treats counted repetitions (except optional parts) as unbounded, and assumes that any two lexemes
may begin at one position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeAlias

from server.grammar.syntax import Budget, Chars, Ends, Lexeme, Node, Ref, Rules, ends

Bytes: TypeAlias = int
"""A set of bytes, one bit each."""

SPECIAL: Bytes = 1 << 0xFF
"""Stands for a control token; no text contains this byte."""


def first_bytes(chars: Chars) -> Bytes:
    """Return the first bytes of these characters in UTF-8."""
    result = 0
    for low, high in chars.ranges:
        result |= (2 << chr(high).encode()[0]) - (1 << chr(low).encode()[0])
    return result


@dataclass(slots=True)
class Automaton:
    """Glushkov's automaton of a lexeme: one state for each of its character sets.

    A state is entered by a character of its set. Sets of states are integers, one bit for each.
    """

    reads: list[Bytes] = field(default_factory=list[Bytes])  # by state: first bytes of its characters
    after: list[int] = field(default_factory=list[int])  # by state: states that may come next
    first: int = 0  # states that a match begins with
    last: int = 0  # states that a match ends with
    nullable: bool = False  # True: the empty text matches

    @property
    def begins(self) -> Bytes:
        return self.read_by(self.first)

    def read_by(self, states: int) -> Bytes:
        """Return the bytes that lead into any of these states."""
        return _union_of(states, self.reads.__getitem__)


def bits(states: int) -> list[int]:
    found: list[int] = []
    while states:
        low = states & -states
        found.append(low.bit_length() - 1)
        states ^= low
    return found


def automaton(node: Node, rules: Rules, budget: Budget) -> Automaton:
    """Return the automaton of a node that has no tokens and no recursion."""
    result = Automaton()

    def link(sources: int, targets: int) -> None:
        for state in bits(sources):
            budget.spend()
            result.after[state] |= targets

    def leaf(node: Node) -> Ends:
        budget.spend()
        match node:
            case Chars():
                result.reads.append(first_bytes(node))
                result.after.append(0)
                state = 1 << (len(result.reads) - 1)
                return state, state, False
            case Ref(name):
                return ends(rules[name], leaf, link)
            case _:
                raise AssertionError("a lexeme has neither tokens nor lexemes in it")

    result.first, result.last, result.nullable = ends(node, leaf, link)
    return result


def follows(rules: Rules, automata: Mapping[Lexeme, Automaton], budget: Budget) -> dict[Lexeme, Bytes]:
    """Return, for each lexeme, the bytes that may come directly after it within a text."""
    lexemes = {lexeme: (one.begins, 1 << i, one.nullable) for i, (lexeme, one) in enumerate(automata.items())}
    known: dict[str, Ends] = dict.fromkeys(rules, (0, 0, False))
    links: dict[int, Bytes] = defaultdict(int)  # by set of lexemes: the bytes that may follow them

    def leaf(node: Node) -> Ends:
        budget.spend()
        match node:
            case Lexeme():
                return lexemes[node]
            case Ref(name):
                return known[name]
            case _:
                return SPECIAL, 0, False

    def link(last: int, head: Bytes) -> None:
        budget.spend()
        links[last] |= head

    while (new := {name: ends(node, leaf, link) for name, node in rules.items()}) != known:
        known = new
    after: dict[Lexeme, Bytes] = dict.fromkeys(automata, 0)
    order = list(automata)
    for last, head in links.items():
        for i in bits(last):
            budget.spend()
            after[order[i]] |= head
    return after


def swallows(long: Automaton, short: Automaton, follow: Bytes, budget: Budget) -> bool:
    """Return True if, after a text of `short`, the lexer could read on in `long` with a byte of `follow`.

    Both lexemes begin at one position; they may be the same. `follow`: the bytes that may come after `short`.
    """
    budget.spend()
    if not follow or not long.begins & short.begins:
        return False
    reached: dict[int, int] = {}
    todo = [(state, long.first) for state in bits(short.first)]
    while todo:
        state, candidates = todo.pop()
        budget.spend()
        matching = _next_states(long, candidates & ~reached.get(state, 0), short.reads[state], budget)
        if not matching:
            continue
        reached[state] = reached.get(state, 0) | matching
        ahead = _union_of(matching, long.after.__getitem__)
        if short.last >> state & 1 and long.read_by(ahead) & follow:
            return True
        todo += [(next_state, ahead) for next_state in bits(short.after[state])]
    return False


def _next_states(automaton: Automaton, states: int, reads: Bytes, budget: Budget) -> int:
    """Return the subset of `states` that are entered by any of the bytes `reads`."""
    possible = bits(states)
    budget.spend(len(possible))
    return sum(1 << state for state in possible if automaton.reads[state] & reads)


def _union_of(states: int, get: Callable[[int], int]) -> int:
    return reduce(int.__or__, map(get, bits(states)), 0)
