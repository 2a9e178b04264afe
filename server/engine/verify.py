"""Sample and look up: the target draws every token; a draft only makes its logits available early.

Exact for any draft, honest or not, at any temperature: the committed tokens are the target's own draws
(llama.cpp and SpecExec, arXiv:2406.02532, look up the target's sample, too).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.engine.proposer import ROOT, Proposal


@dataclass(slots=True)  # as Committed
class Verdict:
    """Tokens to commit, and the guesses that they accept. Not to be changed."""

    tokens: tuple[int, ...]  # at least one
    nodes: tuple[int, ...]  # the proposal's nodes that tokens[:len(nodes)] confirm


def verify(
    proposal: Proposal, draw: Callable[[int, int], int], stop_tokens: frozenset[int], limit: int
) -> Verdict:
    """Walk the proposal along the target's draws. Pure but for `draw`.

    It ends at the first draw without a matching child, at a stop token, or after `limit` tokens.

    Args:
        proposal: The guesses.
        draw: Draws the i-th new token from the logits after a node (ROOT: after the last committed token);
            called
            once per committed token.
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
