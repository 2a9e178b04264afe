"""Width-stable replies are equal to the last bit.

With quantised weights, with flash attention and without, on one thread or two.

Each reply is asked for twice, and tokens and logprobs are compared exactly. The second time a lookup may
guess it, and the KV cache holds another conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TypeAlias

import pytest

from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server.engine.request import GenerationRequest, Speculation
from server.llama.attention_times import KINDS
from server.llama.backend import Vocabulary
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.local.embedded import EmbeddedServer
from server.settings import BUNDLED_MODEL as TARGET
from server.speculation.policy import Policy
from server.speculation.sources.draft_model import DraftModel
from tests.model.asking import Seen, accepted_and_drafted, asks, seen
from tests.model.live import ALL, PAUSES_S, DrafterProcess, How, LiveLead, lead
from tests.model.meddler import Meddler
from tests.support import Outcome

pytestmark = [pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(300)]

N_PROMPTS = {1: 3, 2: 8}
N_LONG = 490  # tokens of another prompt: attention over more than 512 cells, at some step
N_TOKENS = {1: 24, 2: 8}
TEMPERATURES = {1: (0.0, 0.8), 2: (0.8,)}
"""By threads. Two threads on two cores that are not idle can take a hundred times as long as one."""
LOOKUP = Policy(lookup=True, gate=False)


@pytest.fixture(scope="module", params=[1, 2], ids=["1_thread", "2_threads"])
def n_threads(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module", params=KINDS, ids=[f"flash_attention_{kind}" for kind in KINDS])
def target(n_threads: int, request: pytest.FixtureRequest) -> Iterator[LlamaBackend]:
    """Yield the target as a lead opens it by default, for each kind of attention."""
    options = LlamaOptions(TARGET, n_cells=8192, n_seqs=12, n_threads=n_threads)
    with closing(LlamaBackend(replace(options, flash_attention=request.param))) as one:
        yield one


@pytest.fixture(scope="module")
def alone(target: LlamaBackend) -> list[Seen]:
    """Return a list that is empty or has the replies without drafts."""
    return []


def requests_for(vocabulary: Vocabulary, n_threads: int) -> list[GenerationRequest]:
    requests = [
        request
        for temperature in TEMPERATURES[n_threads]
        for request in asks(vocabulary, N_PROMPTS[n_threads], temperature, N_TOKENS[n_threads])
    ]
    if n_threads == 1:
        tokens = [token for request in requests for token in request.prompt] * 3
        requests.append(replace(requests[-1], prompt=tokens[-N_LONG:]))
    return requests


async def say(live: LiveLead, requests: list[GenerationRequest]) -> list[Outcome]:
    """Run all requests at once, then another conversation, then all requests again."""
    first = await live.run(requests)
    other = replace(requests[0], prompt=requests[0].prompt[3:], max_tokens=9)
    await live.run([replace(other, speculation=Speculation(exactness="default"))])
    return [*first, *await live.run(requests)]


async def expected_of(
    target: LlamaBackend, alone: list[Seen], requests: list[GenerationRequest]
) -> list[Seen]:
    if not alone:
        async with lead(target, None, How(exactness="width-stable")) as live:
            alone += [seen(outcome) for outcome in await say(live, requests)]
    return alone


Helpers: TypeAlias = Callable[[ExitStack, EmbeddedServer], How]


def nobody(stack: ExitStack, server: EmbeddedServer) -> How:
    return How(exactness="width-stable")


def drafter(stack: ExitStack, server: EmbeddedServer) -> How:
    stack.enter_context(closing(DrafterProcess(server.url, DRAFT)))
    return How(exactness="width-stable")


def liar(stack: ExitStack, server: EmbeddedServer) -> How:
    stack.enter_context(closing(Meddler(server.url, DRAFT)))
    return How(exactness="width-stable")


def lookup(stack: ExitStack, server: EmbeddedServer) -> How:
    return How(policy=LOOKUP, exactness="width-stable")


def draft_model(stack: ExitStack, server: EmbeddedServer) -> How:
    backend = stack.enter_context(closing(LlamaBackend(LlamaOptions(DRAFT, n_cells=4096, n_seqs=4))))
    return How(policy=ALL, inline=DraftModel(backend), exactness="width-stable")


N_DRAFTERS: dict[Helpers, int] = {drafter: 1, liar: 1}


@pytest.mark.parametrize("helpers", [nobody, drafter, liar, lookup, draft_model])
async def test_not_a_bit_changes(
    helpers: Helpers, n_threads: int, target: LlamaBackend, server: EmbeddedServer, alone: list[Seen]
):
    requests = requests_for(target.vocab, n_threads)
    expected = await expected_of(target, alone, requests)
    n_drafters, accepted, drafted = N_DRAFTERS.get(helpers, 0), 0, 0
    for pause_s in PAUSES_S if n_drafters else (0.0,):
        with ExitStack() as stack:
            how = replace(helpers(stack, server), pause_s=pause_s)
            async with lead(target, server if n_drafters else None, how) as live:
                if n_drafters:
                    await live.until_drafters(n_drafters)
                outcomes = await say(live, requests)
        assert [seen(outcome) for outcome in outcomes] == expected
        accepted, drafted = accepted_and_drafted(outcomes)
        if accepted < drafted and (accepted or helpers is liar):
            break
    assert (drafted > 0) == (helpers is not nobody)
    if helpers in (drafter, lookup, draft_model):
        assert accepted > 0
    if helpers in (drafter, liar, draft_model):
        assert accepted < drafted


async def test_begun_replies_change_no_bit(n_threads: int, target: LlamaBackend):
    requests = requests_for(target.vocab, n_threads)
    async with lead(target, None, How(exactness="width-stable")) as live:
        whole = [seen(outcome).logprobs for outcome in await live.run(requests)]
        begun = [
            replace(request, begun=tuple(one.token for one in told[: len(told) // 2]))
            for request, told in zip(requests, whole, strict=True)
        ]
        rest = [seen(outcome).logprobs for outcome in await live.run(begun)]
    assert rest == [told[len(told) // 2 :] for told in whole]
