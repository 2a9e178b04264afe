"""Shapes: whether a change of width costs, found by trying."""

from __future__ import annotations

import time
from collections.abc import Container

import pytest

from server.lead.calibration import steady_widths
from server.llama.backend import Batch, Logits
from server.llama.shapes import CONTEXT, UNKNOWN, measure
from tests.fake_backend import FakeBackend

pytestmark = pytest.mark.usefixtures("still_clock")

ROW_S, CHANGE_S = 0.0005, 0.004


class Recorded(FakeBackend):
    """A backend that is slower whenever the width differs from the decode before.

    Its decodes take ten times as long while `busy` holds their number.
    """

    def __init__(self, change_s: float, *, overlaps: bool = True, busy: Container[int] = ()) -> None:
        super().__init__(n_batch=CONTEXT, overlaps=overlaps)
        self._change_s, self._busy = change_s, busy
        self._before, self._n = 0, 0

    def decode(self, batch: Batch) -> Logits:
        seconds = ROW_S * len(batch) + (self._change_s if len(batch) != self._before else 0.0)
        time.sleep(10 * seconds if self._n in self._busy else seconds)
        self._before, self._n = len(batch), self._n + 1
        return super().decode(batch)


def test_a_change_that_costs_is_found():
    shapes = measure(Recorded(CHANGE_S), (1, 2, 3))
    assert shapes.change_costs
    assert shapes.padding_pays
    assert set(shapes.steady) == set(shapes.mixed) == {1, 2, 3}
    assert all(shapes.mixed[w] > shapes.steady[w] + CHANGE_S / 2 for w in (1, 2, 3))
    assert shapes.change_s > CHANGE_S / 2
    assert UNKNOWN.change_s == 0.0


def test_free_change_is_found():
    assert not measure(Recorded(0.0), (1, 4)).padding_pays
    assert steady_widths(Recorded(0.0), 17) == UNKNOWN or not measure(Recorded(0.0), (4, 8)).padding_pays


def test_nothing_is_measured_where_a_cpu_decodes():
    assert steady_widths(Recorded(CHANGE_S, overlaps=True), 17).steady
    assert steady_widths(Recorded(CHANGE_S, overlaps=False), 17) == UNKNOWN


WIDEST = range(12, 27, 3)
"""The decodes of three rows before the last one, among decodes of one, two and three rows in turn."""


@pytest.mark.parametrize("busy", [range(10), range(10, 20), range(20, 40), WIDEST])
def test_other_programs_do_not_end_branches(busy: range):
    """A drafter on a CPU keeps the times of its start, so what else ran then must not count."""
    shapes = measure(Recorded(0.0, overlaps=False, busy=busy), (1, 2, 3))
    assert not shapes.padding_pays
    assert shapes.steady == pytest.approx({1: ROW_S, 2: 2 * ROW_S, 3: 3 * ROW_S})


def test_recorded_widths_stay_few():
    assert set(steady_widths(Recorded(0.0), 33, own_graphs=True).steady) == {1, 2, 4, 8, 12, 17, 24, 33}


def test_dear_rows_need_no_padding():
    shapes = measure(Recorded(ROW_S / 2), (1, 16))
    assert not shapes.padding_pays


def test_unmeasurable_shapes_stay_unknown():
    backend = Recorded(CHANGE_S)
    assert set(steady_widths(backend, 17).steady) == {1, 2, 4, 8, 12, 17}
    batch = Batch()
    batch.extend(0, 0, [1], 1)
    backend.decode(batch)  # raises if something is there
    assert set(measure(FakeBackend(n_batch=CONTEXT // 2 + 1), (1, 2)).steady) == {1, 2}
    assert measure(FakeBackend(can_trim=False), (1, 2)) is UNKNOWN
    assert measure(FakeBackend(), (1,)) is UNKNOWN
