"""What may come after each lexeme of a grammar, as sets of first bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from server.grammar.overlap import SPECIAL, Automaton, Bytes, bits
from server.grammar.syntax import Budget, Ends, Lexeme, Node, Ref, Rules, ends


def follows(rules: Rules, automata: Mapping[Lexeme, Automaton], budget: Budget) -> dict[Lexeme, Bytes]:
    """The bytes that may come right after each lexeme (none where the text ends). rules: cut into lexemes;
    automata: of all of them."""
    lexemes = {lexeme: (one.begins, 1 << i, one.nullable) for i, (lexeme, one) in enumerate(automata.items())}
    known: dict[str, Ends] = dict.fromkeys(rules, (0, 0, False))
    links: dict[int, Bytes] = defaultdict(int)  # by the lexemes before

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
