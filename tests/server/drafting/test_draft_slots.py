"""The KV sequences of a draft model."""

from __future__ import annotations

import pytest

from server.drafting.draft_slots import DraftSlots
from server.llama.backend import Batch
from tests.fake_backend import FakeBackend

SAID = list(range(60))


class Windowed(FakeBackend):
    """A backend whose sequences continue at their end only, since a sliding window passed their cells."""

    def intact(self, seq: int, length: int) -> bool:
        return length == self.length(seq)


@pytest.mark.parametrize("backend", [FakeBackend(), Windowed()])
@pytest.mark.parametrize("beginning", [40, 10], ids=["goes on", "begins alike"])
def test_conversation_needs_its_cells(backend: FakeBackend, beginning: int):
    slots = DraftSlots(backend)
    for seq in range(backend.n_seqs):
        backend.trim(seq, 0)
    taken = slots.take(SAID, "")
    assert taken == (0, 0)
    batch = Batch()
    batch.extend(slots.seqs[0], 0, SAID, 0)
    backend.decode(batch)
    slots.release(0, SAID, len(SAID))
    again = slots.take([*SAID[:beginning], 99, 98], "")
    assert again is not None
    slot, held = again
    assert held == (0 if isinstance(backend, Windowed) else beginning)
    assert backend.length(slots.seqs[slot]) == held
