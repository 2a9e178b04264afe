"""How much of a flood is read."""

from __future__ import annotations

import logging

import pytest

from server.speculation.wire.intake import MOST_BEHIND, MOST_S, RESTS, Intake

READ_S, AT_ONCE = MOST_S / 50, 32


def n_read_in(intake: Intake, n_offered: int, at_once: int = AT_ONCE) -> int:
    """Return how many of n_offered reads, each of at_once messages, an interval makes."""
    n = 0
    while n < n_offered and not intake.flooded:
        n += 1
        intake.took(READ_S, at_once, full=at_once == AT_ONCE and n < n_offered)
    intake.end_interval()
    return n


def test_cheap_messages_are_always_read(caplog: pytest.LogCaptureFixture):
    intake = Intake()
    assert [n_read_in(intake, 49) for _ in range(100)] == [49] * 100
    assert caplog.records == []


@pytest.mark.parametrize("at_once", [1, 0])
def test_single_messages_are_no_flood(at_once: int):
    """A drafter on a GPU sends 1,000 a second, 0.1 to 0.2 ms each to read."""
    intake = Intake()
    assert [n_read_in(intake, 500, at_once) for _ in range(20)] == [500] * 20


def test_flood_takes_under_hundredth_core():
    intake = Intake()
    n_beats = 240  # a minute
    n_reads = sum(n_read_in(intake, 1000) for _ in range(n_beats))
    assert n_reads * READ_S / (0.25 * n_beats) < 0.006


def test_unread_inbox_counts_as_flood():
    """Redis itself may have no time for more."""
    intake = Intake()
    for _ in range(2 * MOST_BEHIND):
        intake.took(MOST_S / 1000, AT_ONCE, full=True)
    intake.end_interval()
    assert intake.flooded


def test_flood_ends_with_full_reading(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "duo.bus")
    intake = Intake()
    for _ in range(60):
        n_read_in(intake, 1000)
    n_lost = 0
    while not n_read_in(intake, 10):
        n_lost += 1
    assert n_lost <= RESTS[1]
    assert [n_read_in(intake, 10) for _ in range(9)] == [10] * 9
    dropping, reading = [record.message for record in caplog.records]
    assert "they are dropped" in dropping
    assert reading == "messages are read again"
