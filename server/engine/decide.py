"""What the rows of one step say for one session: the tokens to commit, and the event that tells of them."""

from __future__ import annotations

from server.engine.events import Committed
from server.engine.proposer import Proposal
from server.engine.rejection import judge
from server.engine.session import Session
from server.engine.verify import Verdict, verify
from server.llama.backend import Logits
from server.sampling.draw import Distribution
from server.sampling.logprobs import TokenLogprobs, token_logprobs


def decide(session: Session, proposal: Proposal, rows: Logits, *, by_rejection: bool) -> Verdict:
    """rows: logits after the last committed token, then after each node of the proposal. The session's
    sampler advances by what is committed. by_rejection: by the classical rule, see rejection.py."""
    sampler, position, request = session.sampler, session.position, session.request
    if not by_rejection or request.sampling.mirostat:
        return verify(
            proposal,
            lambda node, i: sampler.choose(rows[1 + node], position + i),
            request.stop_tokens,
            session.n_left,
        )

    def target(i: int) -> Distribution:
        if i:
            sampler.accept(proposal.tokens[i - 1])
        return sampler.distribution(rows[i], position + i)

    verdict = judge(
        proposal.tokens,
        proposal.drafted,
        target,
        (request.sampling.seed, position),
        request.stop_tokens,
        session.n_left,
    )
    sampler.accept(verdict.tokens[-1])
    return verdict


def logprobs_of(n_top: int | None, verdict: Verdict, rows: Logits) -> tuple[TokenLogprobs, ...]:
    """Of the committed tokens, each from the row it was drawn from."""
    if n_top is None:
        return ()
    read = (0, *(1 + node for node in verdict.nodes))
    return tuple(
        token_logprobs(rows[i], token, n_top) for i, token in zip(read, verdict.tokens, strict=False)
    )


def committed_event(verdict: Verdict, proposal: Proposal, logprobs: tuple[TokenLogprobs, ...]) -> Committed:
    """What the caller is told."""
    if not proposal:
        return Committed(verdict.tokens, (None,) * len(verdict.tokens), logprobs=logprobs)
    sources = [proposal.sources[node] for node in verdict.nodes]
    rejected = tuple(t for i, t in enumerate(proposal.tokens) if i not in verdict.nodes)
    padding = (None,) * (len(verdict.tokens) - len(verdict.nodes))
    return Committed(verdict.tokens, (*sources, *padding), len(proposal), rejected, logprobs)
