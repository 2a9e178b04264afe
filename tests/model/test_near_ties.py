"""Exactness "default": where a reply with drafts first differs from that without, two tokens nearly tie.

How near is measured: the replies are made once more without drafts and all at once, so that they are
elsewhere in the KV cache. Rounding of quantised activations turns a last bit into tenths of a logit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest

from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server.engine.request import GenerationRequest
from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.local.embedded import EmbeddedServer
from server.sampling.logprobs import TokenLogprobs
from server.settings import BUNDLED_MODEL as TARGET
from server.speculation.sources.draft_model import DraftModel
from tests.model.asking import accepted_and_drafted, asks, seen
from tests.model.live import PAUSES_S, DrafterProcess, How, Padded, lead
from tests.support import Outcome

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(240)]

N_PROMPTS, N_TOKENS = 8, 120
CLOSE = 2.0  # gaps that are looked at: far below the likeliest token everything moves more
SLACK = 1.5  # of the largest move that was seen: it is the largest of a sample


@pytest.fixture(scope="module")
def target() -> Iterator[LlamaBackend]:
    """Yield the target as a lead opens it by default, with one more sequence for Padded."""
    with closing(LlamaBackend(LlamaOptions(TARGET, n_cells=8192, n_seqs=13))) as backend:
        yield backend


def requests_for(backend: LlamaBackend) -> list[GenerationRequest]:
    return [replace(one, n_logprobs=20) for one in asks(backend.vocab, N_PROMPTS, 0.0, N_TOKENS)]


Reply = Sequence[TokenLogprobs]


def replies(outcomes: Sequence[Outcome]) -> list[Reply]:
    return [seen(outcome).logprobs for outcome in outcomes]


def first_difference(one: Reply, other: Reply) -> int | None:
    """Return the first position at which two replies differ, or None."""
    n = sum(1 for _ in takewhile(lambda pair: pair[0].token == pair[1].token, zip(one, other, strict=False)))
    return n if n < min(len(one), len(other)) else None


def gap(at: TokenLogprobs, token: int) -> float:
    """Return how far a token's logprob is below the highest; infinite if it is not among the top ones."""
    return at.top[0][1] - dict(at.top).get(token, -np.inf)


def moves(one: Reply, other: Reply) -> list[float]:
    """Return by how much gaps below CLOSE between the likeliest two change, up to the first difference."""
    end = first_difference(one, other)
    agreed = list(zip(one, other, strict=False))[: None if end is None else end + 1]
    gaps = [(gap(here, here.top[1][0]), gap(there, here.top[1][0])) for here, there in agreed]
    return [abs(here - there) for here, there in gaps if here < CLOSE]


def gaps_at_differences(plain: Sequence[Reply], drafted: Sequence[Reply]) -> list[float]:
    found: list[float] = []
    for one, other in zip(plain, drafted, strict=True):
        at = first_difference(one, other)
        if at is not None:
            found.append(gap(one[at], other[at].token))
    return found


class Measured:
    """The replies without drafts.

    bound: the largest gap between two tokens that rounding may close.
    """

    def __init__(self, plain: Sequence[Reply], moved: Sequence[Reply]) -> None:
        self.plain = plain
        self.bound = SLACK * max(
            move for one, other in zip(plain, moved, strict=True) for move in moves(one, other)
        )
        self.gaps = sorted(gap(at, at.top[1][0]) for reply in plain for at in reply)

    @property
    def share_of_ties(self) -> float:
        return sum(one <= self.bound for one in self.gaps) / len(self.gaps)


@pytest.fixture(scope="module")
def known() -> list[Measured]:
    """Return a list that is empty or has the one measurement."""
    return []


async def measure(target: LlamaBackend, known: list[Measured]) -> Measured:
    if not known:
        requests = requests_for(target)
        async with lead(target, None) as live:
            plain = [outcome for one in requests for outcome in await live.run([one])]
        async with lead(target, None) as live:
            side_by_side = await live.run(requests[::-1])
        known.append(Measured(replies(plain), replies(side_by_side[::-1])))
    return known[0]


def assert_near_ties(measured: Measured, outcomes: Sequence[Outcome], who: str) -> None:
    accepted, drafted = accepted_and_drafted(outcomes)
    assert 0 < accepted < drafted
    gaps = gaps_at_differences(measured.plain, replies(outcomes))
    print(
        f"{who}: {len(gaps)} of {len(outcomes)} replies differ, first where the gap is "
        f"{', '.join(f'{one:.3f}' for one in gaps)}; near-ties are up to {measured.bound:.3f}, "
        f"{measured.share_of_ties:.0%} of all tokens; the median gap is "
        f"{measured.gaps[len(measured.gaps) // 2]:.2f}"
    )
    assert all(one <= measured.bound for one in gaps)


async def test_with_a_drafter(target: LlamaBackend, known: list[Measured], server: EmbeddedServer):
    measured = await measure(target, known)
    outcomes: list[Outcome] = []
    with closing(DrafterProcess(server.url, DRAFT)):
        for pause_s in (0.0, *PAUSES_S[:-1]):
            async with lead(target, server, How(pause_s=pause_s)) as live:
                await live.until_drafters(1)
                outcomes = [outcome for one in requests_for(target) for outcome in await live.run([one])]
            accepted, drafted = accepted_and_drafted(outcomes)
            if 0 < accepted < drafted:
                break
    assert_near_ties(measured, outcomes, "a drafter")


async def test_with_a_draft_model_in_the_lead(target: LlamaBackend, known: list[Measured]):
    measured = await measure(target, known)
    with closing(LlamaBackend(LlamaOptions(DRAFT, n_cells=4096, n_seqs=4))) as draft:
        async with lead(target, None, How(inline=DraftModel(draft))) as live:
            outcomes = [outcome for one in requests_for(target) for outcome in await live.run([one])]
    assert_near_ties(measured, outcomes, "a draft model")


class Mistaken(Padded):
    """A backend that returns the logits of each row for the next one."""

    def decode(self, batch: Batch) -> Logits:
        logits = super().decode(batch)
        return np.roll(logits, 1, axis=0)


async def test_a_mistake_is_no_near_tie(target: LlamaBackend, known: list[Measured]):
    """The measure finds a real mistake."""
    measured = await measure(target, known)
    with closing(LlamaBackend(LlamaOptions(DRAFT, n_cells=4096, n_seqs=4))) as draft:
        async with lead(Mistaken(target), None, How(inline=DraftModel(draft))) as live:
            outcomes = await live.run(requests_for(target)[:3])
    gaps = gaps_at_differences(measured.plain[:3], replies(outcomes))
    assert max(gaps) > measured.bound
