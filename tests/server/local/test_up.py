"""What `duo up` starts, by the GPUs that there are."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from server.local.up import up
from server.settings import LeadSettings, UpSettings

ROOM = 10**9  # bytes, more than the bundled models want


class Started:
    def __init__(self) -> None:
        self.drafters: list[tuple[str, list[str], dict[str, str]]] = []
        self.lead: LeadSettings | None = None

    def drafter(self, name: str, flags: list[str], environment: dict[str, str]) -> SimpleNamespace:
        self.drafters.append((name, flags, environment))
        return SimpleNamespace(close=lambda: None)

    def run_lead(self, settings: LeadSettings, site: object) -> int:
        self.lead = settings
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    found = Started()
    here = SimpleNamespace(url="redis://here")
    replaced: dict[str, Any] = {
        "free_memory_of_gpus": lambda: [ROOM, 2 * ROOM, ROOM],
        "n_cores": lambda: 8,
        "open_socket": lambda host, port: nullcontext(),  # pyright: ignore[reportUnknownLambdaType]
        "EmbeddedServer": lambda: nullcontext(here),
        "drafter": found.drafter,
        "run_lead": found.run_lead,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(f"server.local.up.{name}", value)
    return found


def place_of(flags: list[str]) -> list[str]:
    return flags[flags.index("--split-mode") :][:4] if "--split-mode" in flags else []


def test_the_target_has_a_gpu_and_each_drafter_another(started: Started):
    assert up(UpSettings.model_validate({"drafters": 3})) == 0
    assert started.lead is not None
    assert (started.lead.split_mode, started.lead.main_gpu) == ("none", 1)
    assert [name for name, _, _ in started.drafters] == ["drafter-1", "drafter-2", "drafter-3"]
    gpus = [place_of(flags) for _, flags, _ in started.drafters]
    assert gpus == [["--split-mode", "none", "--main-gpu", gpu] for gpu in ("0", "2", "0")]


def test_who_says_where_drafters_draft_has_them_there(started: Started):
    up(UpSettings.model_validate({"draft_devices": "2"}))
    assert started.lead is not None
    assert started.lead.split_mode == "layer"
    ((_, flags, environment),) = started.drafters
    assert place_of(flags) == []
    assert environment == {"CUDA_VISIBLE_DEVICES": "2"}
