"""Which devices a model may use."""

from __future__ import annotations

import pytest

from server.llama import devices
from server.llama.devices import own_gpus, use_no_gpu


def test_process_can_avoid_all_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "_host_only", False)
    assert own_gpus() is None, "llama.cpp chooses"
    use_no_gpu()
    assert list(own_gpus()) == [None]
