"""How much host memory conversations get that the KV cache has no room for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from server.lead import tiers
from server.lead.tiers import free_memory, memory_budget
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions, Weights

MIB = 1 << 20


@dataclass
class Loaded:
    """The properties of a backend on which the budget depends."""

    weights: Weights = field(default_factory=Weights)
    n_bytes: int = 400 * MIB
    overlaps: bool = False

    @property
    def options(self) -> LlamaOptions:
        return LlamaOptions(Path("m.gguf"), 64, 1, weights=self.weights)


def budget(wanted: int | None, loaded: Loaded) -> int:
    return memory_budget(wanted, cast(LlamaBackend, loaded)) // MIB


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a machine with 4,000 MiB available and a cgroup without a limit."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(f"MemTotal: 9000000 kB\nMemAvailable: {4000 << 10} kB\nHugePages: 0\n")
    (tmp_path / "self/cgroup").write_text("4:memory:/elsewhere\n0::/duo.service\n")
    group = tmp_path / "groups/duo.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.stat").write_text(f"anon {500 * MIB}\nfile 7\n")
    monkeypatch.setattr(tiers, "PROC", tmp_path)
    monkeypatch.setattr(tiers, "GROUPS", tmp_path / "groups")
    return group


@pytest.mark.usefixtures("machine")
def test_default_is_quarter_of_memory():
    assert budget(None, Loaded()) == 900
    assert budget(None, Loaded(Weights(mmap=False))) == 1000
    assert budget(None, Loaded(Weights(mlock=True))) == 1000
    assert budget(None, Loaded(overlaps=True)) == 1000, "on a GPU"
    assert budget(None, Loaded(n_bytes=5000 * MIB)) == 0


@pytest.mark.usefixtures("machine")
def test_given_budget_stands():
    assert budget(0, Loaded()) == 0
    assert budget(123, Loaded()) == 123


def test_a_limit_of_the_cgroup_counts(machine: Path):
    (machine / "memory.max").write_text(f"{1500 * MIB}\n")
    assert free_memory() == 1000 * MIB
    (machine / "memory.max").write_text(f"{90_000 * MIB}\n")
    assert free_memory() == 4000 * MIB


def test_unknown_memory_gives_two_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tiers, "PROC", tmp_path)
    assert budget(None, Loaded(overlaps=True)) == 2048
