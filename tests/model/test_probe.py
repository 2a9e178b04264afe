"""The probe on the bundled models: what it finds is what decoding does."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server.errors import StartupError
from server.flags import read
from server.lead.attention import AttentionChoice
from server.lead.loading import load_target
from server.lead.recollection import of_logits, recall
from server.llama.backend import Batch, Logits
from server.llama.llamacpp import LlamaBackend
from server.settings import LeadSettings
from server.terminal.probe import ProbeResult, ProbeSettings, probe, probe_backend

pytestmark = pytest.mark.model
WIDTHS = (1, 2, 3, 8)
KEPT = {*(field.name for field in fields(ProbeResult)), "exact", "max_difference"}


@pytest.fixture(autouse=True)
def empty_caches(
    q8_target: LlamaBackend, f32_target: LlamaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty the caches, in which other tests leave conversations and leads their measurements."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for backend in (q8_target, f32_target):
        for seq in range(backend.n_seqs):
            backend.trim(seq, 0)


def score(backend: LlamaBackend) -> Logits:
    """Return a row that depends on everything in the cache, and leave the cache empty."""
    batch = Batch()
    batch.extend(0, 0, list(range(40, 100)), 1)
    row = backend.decode(batch)[0].copy()
    backend.trim(0, 0)
    return row


def test_q8_0_differs_for_single_rows(q8_target: LlamaBackend):
    """A single row takes another path through attention, which shows in long contexts only."""
    result = probe_backend(q8_target, WIDTHS)
    assert WIDTHS[1:] in [tuple(width for width in one if width > 1) for one in result.classes]
    assert (len(result.classes) == 1) == (max(result.differences) == 0)
    assert bool(result.moved) == (result.moved_difference > 0)
    assert 0 < result.smallest_margin < 10


def test_f32_differs_for_single_rows(f32_target: LlamaBackend):
    result = probe_backend(f32_target, WIDTHS)
    assert WIDTHS[1:] in [tuple(width for width in one if width > 1) for one in result.classes]
    assert max(result.differences) < 1e-3


def test_the_cache_is_left_as_it_was(q8_target: LlamaBackend):
    before = score(q8_target)
    probe_backend(q8_target, WIDTHS)
    np.testing.assert_array_equal(score(q8_target), before)


def test_the_command(capsys: pytest.CaptureFixture[str]):
    flags = ["--model", str(DRAFT), "--threads", "1", "--max-width", "3", "--flash-attn", "auto"]
    assert probe(read(ProbeSettings, [*flags, "--json"])) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["widths"] == [1, 2, 3]
    assert sorted(width for one in said["classes"] for width in one) == [1, 2, 3]
    assert said["model"] == str(DRAFT)
    assert probe(read(ProbeSettings, [*flags, "--no-kv-unified", "--json"])) == 0
    apart = json.loads(capsys.readouterr().out)
    assert bool(said["moved"]) == (said["moved_difference"] > 0), "whether there are any depends on the CPU"
    assert apart["moved"] == []
    assert probe(read(ProbeSettings, flags)) == 0
    shown = capsys.readouterr().out
    assert "The closest two tokens are" in shown
    how = {"on": "with", "off": "without"}[said["flash_attn"]]
    assert f", {how} flash attention, chosen by" in " ".join(shown.split())
    assert probe(read(ProbeSettings, [*flags, "--flash-attn", "off"])) == 0
    assert "without flash attention" in (shown := " ".join(capsys.readouterr().out.split()))
    assert "chosen" not in shown


def test_a_lead_finds_what_the_probe_found(capsys: pytest.CaptureFixture[str]):
    """Both choose flash attention by measuring, and it is part of the key."""
    flags = ["--model", str(DRAFT), "--threads", "1", "--flash-attn", "auto"]
    assert probe(read(ProbeSettings, [*flags, "--max-width", "2", "--json"])) == 0
    found = json.loads(capsys.readouterr().out)
    settings = read(LeadSettings, [*flags, "--parallel", "1"])
    with closing(load_target(settings, 1, AttentionChoice())) as target:
        assert recall("probe", of_logits(target.options)) == {key: found[key] for key in KEPT}


def test_no_model(tmp_path: Path):
    with pytest.raises(StartupError, match="no model file"):
        probe(read(ProbeSettings, ["--model", str(tmp_path / "none.gguf")]))
