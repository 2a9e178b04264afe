"""Verify guesses: the target draws every token, and a guess is accepted if it equals the token drawn.

The text is exact with any draft, honest or not, at any temperature, since the committed tokens are the
target's own draws. Guesses only make the target's logits available early. llama.cpp and SpecExec
(arXiv:2406.02532) do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.engine.proposer import ROOT, Proposal


@dataclass(slots=True)  # not frozen, for the reason given at Committed
class Verdict:
    """Tokens to commit, and which guesses they confirm. Not to be changed."""

    tokens: tuple[int, ...]  # at least one token
    nodes: tuple[int, ...]  # accepted nodes of the proposal; tokens[i] confirms nodes[i]


def verify(
    proposal: Proposal, draw: Callable[[int, int], int], stop_tokens: frozenset[int], limit: int
) -> Verdict:
    """Follow the target's draws through the proposal's tree. Pure except for `draw`.

    The walk ends at the first draw without a matching child, at a stop token, or after `limit` tokens.

    Args:
        proposal: The guesses.
        draw: draw(node, i) draws the i-th new token from the logits after this node (ROOT: after the last
            committed token). Called once per committed token.
        stop_tokens: Tokens that end the generation.
        limit: Maximum tokens, at least 1.
    """
    tokens: list[int] = []
    nodes: list[int] = []
    node: int | None = ROOT
    while node is not None:
        token = draw(node, len(tokens))
        tokens.append(token)
        node = proposal.child(node, token)
        if node is not None:
            nodes.append(node)
        if token in stop_tokens or len(tokens) >= limit:
            break
    return Verdict(tuple(tokens), tuple(nodes))
