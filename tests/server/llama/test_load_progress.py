"""What is told while a model loads."""

from __future__ import annotations

import logging

import pytest

from server.llama.load_progress import EVERY_S, LoadProgress


def test_long_load_reports_progress(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "duo.loading")
    now = 100.0
    progress = LoadProgress("big", lambda: now)
    for share in (0.0, 0.1, 0.25, 0.5, 0.5, 0.75, 1.0):
        assert progress(share)
        now += EVERY_S / 2
    assert caplog.messages == [
        "  loading  big: 25 %, about 15 s left",
        "  loading  big: 50 %, about 10 s left",
    ]
