"""A draft model in the lead reads a long prompt in slices: every step stays short, and others go on."""

from __future__ import annotations

from typing import cast

import pytest

from server.drafting.model_drafter import SHARED_ROWS
from server.engine.scheduler import Limits
from server.llama.with_block import MOST_WAITING, WithBlock
from server.speculation.policy import Policy
from server.speculation.sources.block_draft import BlockDraft
from server.speculation.sources.draft_model import DraftModel
from server.speculation.speculator import Speculator
from tests.fake_backend import FakeBackend, FakeModel
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
        harness.engine.step()
        found.append(sum(drafts.widths))
        drafts.widths.clear()
    assert not (beside and harness.outcomes[other].ended)
    return found


def lead(policy: Policy) -> tuple[Harness, FakeBackend]:
    drafts = FakeBackend(MODEL, n_batch=256)
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
