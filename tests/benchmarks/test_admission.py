"""What an admission takes, measured on a toy model."""

from __future__ import annotations

from benchmarks.admission import N_OWN, measure, table
from tests.fake_backend import FakeBackend


def test_bursts_are_admitted_to_a_full_cache_and_share_what_prompts_begin_with():
    backend = FakeBackend(n_seqs=12)  # of two slots, for trees of three leaves: four conversations
    found = measure(backend, 2, n_rounds=3)
    assert len(found) == 3
    assert min(found) > 0.0
    assert backend.widths[-6:] == [N_OWN] * 6
    assert all(backend.length(seq) for seq in range(4)), "a sequence that holds no conversation"


def test_the_table_has_a_line_for_each_number_of_slots():
    assert len(table([(4, [100.0, 90.0]), (64, [200.0])]).splitlines()) == 4
