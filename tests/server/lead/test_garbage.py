"""What is there when a lead begins to serve is not looked at again by garbage collections."""

from __future__ import annotations

import gc

from server.lead.startup import keep_for_good


def test_collection_skips_older_objects():
    n_before = len(gc.get_objects())
    keep_for_good()
    try:
        assert len(gc.get_objects()) < n_before / 10
        assert gc.get_freeze_count() > n_before / 2
    finally:
        gc.unfreeze()
