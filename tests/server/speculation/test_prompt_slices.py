"""A draft model in the lead reads a long prompt in slices: every step stays short, and others go on."""

from __future__ import annotations

import asyncio
import itertools
from typing import cast

import pytest

from server.drafting.model_drafter import SHARED_ROWS
from server.engine.engine import Engine
from server.engine.events import Finished
from server.engine.scheduler import Limits
from server.engine.thread import EngineThread
from server.engine.watchdog import STEP_STUCK_S
from server.llama.with_block import MOST_WAITING, WithBlock
from server.speculation.policy import Policy
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.sources.draft_model import DraftModel
from server.speculation.speculator import Speculator
from tests.fake_backend import FakeBackend, FakeModel
from tests.gated import ENOUGH, Gated
from tests.support import Harness, request
from tests.toy_block import ToyBlock

MODEL = FakeModel(eog_rate=0.0)
LONG = tuple(32 + i % 90 for i in range(700))
GATES = [Policy(lookup=False), Policy(lookup=False, gate=False)]


def rows_of_steps(harness: Harness, drafts: FakeBackend, *, beside: bool = False) -> list[int]:
    """Return the rows that the draft model evaluates in each step of a long prompt, beside another reply."""
    other = 0
    if beside:
        (other,) = harness.submit(request(b"a short prompt", max_tokens=300))
        while len(harness.outcomes[other].tokens) < 3:
            harness.engine.step()
    drafts.widths.clear()
    (long,) = harness.submit(request(LONG, max_tokens=40))
    found = list[int]()
    while not harness.outcomes[long].ended:
        n_before = len(harness.outcomes[other].tokens) if beside else 0
        harness.engine.step()
        found.append(sum(drafts.widths))
        drafts.widths.clear()
        assert not beside or len(harness.outcomes[other].tokens) > n_before, "a step that brought it nothing"
    assert not (beside and harness.outcomes[other].ended)
    return found


def lead(policy: Policy, model: FakeModel = MODEL) -> tuple[Harness, FakeBackend]:
    drafts = FakeBackend(model, n_batch=256)
    speculator = Speculator(policy, inline=DraftModel(drafts))
    limits = Limits(n_batch=256, draft_max=4)
    return Harness(FakeBackend(MODEL, n_batch=256), speculator, limits=limits), drafts


@pytest.mark.parametrize("policy", GATES, ids=["gated", "all"])
def test_long_prompt_is_read_in_slices(policy: Policy):
    harness, drafts = lead(policy)
    rows = rows_of_steps(harness, drafts)
    assert sum(rows) > len(LONG)
    assert max(rows) <= 256 + 8


@pytest.mark.parametrize("policy", GATES, ids=["gated", "all"])
def test_others_decode_while_it_is_read(policy: Policy):
    harness, drafts = lead(policy)
    rows = rows_of_steps(harness, drafts, beside=True)
    assert max(rows) <= SHARED_ROWS + 2 * 8
    assert Limits().n_chunk == SHARED_ROWS


def test_prompt_is_read_beside_the_target():
    """The first token is guessed for, and no step takes more than a slice."""
    harness, drafts = lead(GATES[1])
    (other,) = harness.submit(request(b"a short prompt", max_tokens=300))
    while len(harness.outcomes[other].tokens) < 3:
        harness.engine.step()
    (long,) = harness.submit(request(LONG, max_tokens=40))
    rows = list[int]()
    while not harness.outcomes[long].tokens:
        drafts.widths.clear()
        harness.engine.step()
        rows.append(sum(drafts.widths))
    assert sum(rows) > len(LONG) - SHARED_ROWS
    assert max(rows) <= SHARED_ROWS + 2 * 8
    n_before, n_steps = len(harness.outcomes[long].tokens), 0
    while not harness.outcomes[long].ended:
        harness.engine.step()
        n_steps += 1
    assert n_steps < 40 - n_before, "guessed from the first token on"


def test_wrong_model_reads_no_prompt_beside():
    harness, drafts = lead(GATES[0], FakeModel(eog_rate=0.0, error=1.0, error_seed=3))
    (other,) = harness.submit(request(b"a short prompt", max_tokens=300))
    while len(harness.outcomes[other].tokens) < 3:
        harness.engine.step()
    (long,) = harness.submit(request(LONG, max_tokens=40))
    drafts.widths.clear()
    while not harness.outcomes[long].tokens:
        harness.engine.step()
    assert sum(drafts.widths) < SHARED_ROWS


async def test_watchdog_takes_slices_for_work():
    """Each decode takes a while, all of them far longer than a step may."""
    looks = int(STEP_STUCK_S / 2)
    with Gated(MODEL, n_batch=64) as drafts:
        speculator = Speculator(GATES[1], inline=DraftModel(drafts))
        limits = Limits(n_batch=512, draft_max=1)
        thread = EngineThread(
            lambda emit: Engine(FakeBackend(MODEL, n_batch=512), speculator, emit, limits=limits), n_ctx=4096
        )
        thread.watchdog.clock = itertools.count().__next__
        thread.start()
        reply = thread.submit(request(LONG, max_tokens=40))
        n_slices = len(LONG) // drafts.n_batch
        for n in range(1, n_slices + 1):
            await asyncio.to_thread(drafts.until_step, n)
            for _ in range(looks):
                thread.check()
            assert thread.stuck() is None
            drafts.allow(1)
        assert n_slices * looks >= 5 * STEP_STUCK_S
        drafts.allow(ENOUGH)
        events = [event async for arrived in reply for event in arrived]
    assert isinstance(events[-1], Finished)
    await thread.stop()


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_block_reads_a_prompt_in_slices(beside: bool):
    target = FakeBackend(MODEL, n_batch=256)
    block = ToyBlock(target, MODEL, n_batch=256)
    model = WithBlock(target, block)
    limits = Limits(n_batch=256, draft_max=4)
    harness = Harness(
        cast(FakeBackend, model), Speculator(GATES[1], inline=BlockDraft(model, most=4)), limits=limits
    )
    rows = rows_of_steps(harness, block.cells, beside=beside)
    assert sum(rows) > len(LONG)
    assert max(rows) <= (SHARED_ROWS + MOST_WAITING if beside else 256) + 2 * 8
