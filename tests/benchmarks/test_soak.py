from __future__ import annotations

from typing import Any

import pytest

from benchmarks import client
from benchmarks.prompts import Prompt
from benchmarks.soak import Sample, fill, plot, slope, table
from server.text.transcript import MOST_CONVERSATIONS


def samples(growth_per_hour: float) -> list[Sample]:
    """Return an hour of samples, a minute apart; memory is taken after ten."""
    return [
        Sample(60.0 * i, int((i > 10) * 2**30 * (1 + growth_per_hour * i / 60)), 7, 23, [0.5] * 9 + [2.0], 40)
        for i in range(60)
    ]


@pytest.mark.parametrize("growth", [0.0, 0.01, -0.02])
def test_slope_ignores_warm_up(growth: float):
    assert slope(samples(growth)) == pytest.approx(growth, abs=1e-6)


def test_rows_then_a_plot():
    lines = table(samples(0.01)).splitlines()
    assert len(lines) == 2 + 12 + 1
    assert lines[2] == "| 4 | 0.0 | 7 | 23 | 50 | 0.50 | 2.0 | 4.0 |"
    assert lines[-1].startswith("| over time | ▁▁█")


def test_plot_has_all_bars():
    assert plot([1, 2, 8]) == "▁▂█"
    assert plot([3, 3]) == "▁▁"


def test_soak_holds_different_conversations(monkeypatch: pytest.MonkeyPatch):
    held: list[tuple[str, str]] = []

    def ask(port: int, prompt: Prompt, max_tokens: int, *, more: dict[str, Any]) -> None:
        held.append((prompt.salt, str(prompt.messages)))

    monkeypatch.setattr(client, "ask", ask)
    fill(1)
    assert len(set(held)) == MOST_CONVERSATIONS
