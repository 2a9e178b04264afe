"""Conversations that are evaluated again sooner than they are saved and loaded."""

from __future__ import annotations

from tests.server.engine.test_residence import ENOUGH, harness, resting, texts_of


def test_cheap_conversations_save_at_end():
    found, backend, tiers = resting(ENOUGH)
    costs = found.engine.residence.move_costs
    costs.token_s.value, costs.byte_s.value, costs.cell_bytes = 1e-6, 1.0, 1.0
    texts, cached = texts_of(found, 2, 6)
    assert backend.n_saved == 0
    assert sum(cached[6:]) < 3 * 107
    assert texts == texts_of(harness(None, n_seqs=8), 2, 6)[0]
    found.engine.residence.save_all(1.0)
    assert backend.n_saved == tiers.counters().memory_snapshots > 0
