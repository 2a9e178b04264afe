"""Trees of guesses with a real model: the text is that without guesses, whichever branch is accepted.

F32 weights and cache, and never a batch of one row, as in test_invariance.py.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from server.engine.request import GenerationRequest
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.local.embedded import EmbeddedServer
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from tests.model.asking import accepted_and_drafted, asks, seen
from tests.model.live import ALL, PAUSES_S, DrafterProcess, How, LiveLead, Padded, lead
from tests.support import Outcome

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(240)]

N_PROMPTS, N_TOKENS = 4, 70
of_temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])


class Crossing(Padded):
    """A backend that counts n_crossings, acceptances of a branch other than the first.

    Their cells are copied from a shadow to one of the first n_conversations.
    """

    def __init__(self, backend: LlamaBackend, n_conversations: int) -> None:
        super().__init__(backend)
        self.n_crossings = 0
        self._n_conversations = n_conversations

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        self.n_crossings += source >= self._n_conversations > target
        super().copy(source, target, start, end)


def requests_for(backend: LlamaBackend, temperature: float) -> list[GenerationRequest]:
    return [
        replace(one, sampling=replace(one.sampling, top_k=0, top_p=1.0, min_p=0.0))
        for one in asks(backend.vocab, N_PROMPTS, temperature, N_TOKENS)
    ]


async def turns(live: LiveLead, requests: list[GenerationRequest]) -> list[Outcome]:
    """Run the requests one by one, then the next turn of each, all at once."""
    first = [outcome for one in requests for outcome in await live.run([one])]
    following = [
        replace(one, prompt=[*one.prompt, *outcome.tokens], max_tokens=30)
        for one, outcome in zip(requests, first, strict=True)
    ]
    return [*first, *await live.run(following)]


Alone: TypeAlias = dict[float, list[Outcome]]


@pytest.fixture(scope="module")
def alone() -> Alone:
    """Return the replies without drafts by temperature, once there are any."""
    return {}


async def expected_of(alone: Alone, target: LlamaBackend, temperature: float) -> list[Outcome]:
    if temperature not in alone:
        async with lead(Padded(target), None) as live:
            alone[temperature] = await turns(live, requests_for(target, temperature))
    return alone[temperature]


def assert_same(outcomes: list[Outcome], expected: list[Outcome]) -> None:
    """Check that outcomes are equal, except for logprobs, which are close.

    Other cells change their last bits.
    """
    for outcome, other in zip(outcomes, expected, strict=True):
        here, there = seen(outcome), seen(other)
        assert here._replace(logprobs=()) == there._replace(logprobs=())
        pairs = zip(here.logprobs, there.logprobs, strict=True)
        assert max(abs(one.logprob - two.logprob) for one, two in pairs) < 0.01


@of_temperatures
async def test_trees_of_a_drafter(
    temperature: float,
    f32_target: LlamaBackend,
    f32_pair: tuple[Path, Path],
    server: EmbeddedServer,
    alone: Alone,
):
    requests = requests_for(f32_target, temperature)
    expected = await expected_of(alone, f32_target, temperature)
    backend = Crossing(f32_target, n_conversations=(f32_target.n_seqs - 1) // 3)
    outcomes: list[Outcome] = []
    with closing(DrafterProcess(server.url, f32_pair[1])):
        for pause_s in PAUSES_S:  # alternatives are drafted once the path is well ahead
            async with lead(backend, server, How(pause_s=pause_s)) as live:
                await live.until_drafters(1)
                outcomes = await turns(live, requests)
            assert_same(outcomes, expected)
            if backend.n_crossings:
                break
    accepted, drafted = accepted_and_drafted(outcomes)
    assert 0 < accepted < drafted
    assert backend.n_trees > 0
    assert backend.n_crossings > 0


@of_temperatures
@pytest.mark.parametrize("policy", [ALL, Policy()], ids=["all", "default"])
async def test_inner_draft_makes_trees(
    policy: Policy, temperature: float, f32_target: LlamaBackend, f32_pair: tuple[Path, Path], alone: Alone
):
    """The gate decides how much is decoded, on a small machine perhaps nothing."""
    requests = requests_for(f32_target, temperature)
    expected = await expected_of(alone, f32_target, temperature)
    backend = Crossing(f32_target, n_conversations=(f32_target.n_seqs - 1) // 3)
    with closing(LlamaBackend(LlamaOptions(f32_pair[1], n_cells=4096, n_seqs=4))) as draft:
        async with lead(backend, None, How(policy=policy, inline=DraftModel(draft))) as live:
            outcomes = await turns(live, requests)
    assert_same(outcomes, expected)
    if policy is ALL:
        accepted, drafted = accepted_and_drafted(outcomes)
        assert 0 < accepted < drafted
        assert backend.n_trees > 0
        assert backend.n_crossings > 0
