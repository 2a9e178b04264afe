"""What a probe concludes from rows of logits, and what it does to the backend it probes."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from server.errors import BackendError
from server.flags import read
from server.llama.backend import Batch, Logits
from server.terminal.probe import ProbeResult, ProbeSettings, compare, probe_backend, table, verdict
from tests.fake_backend import FakeBackend


def rows(*values: list[float]) -> Logits:
    return np.array(values, dtype=np.float32)


BASE = rows([1.0, 3.0, 2.0], [0.5, 0.25, -1.0])


def test_equal_bits_are_one_class():
    result = compare({1: BASE, 2: BASE.copy(), 8: BASE.copy()})
    assert result == ProbeResult(
        widths=(1, 2, 8),
        n_rows=2,
        classes=((1, 2, 8),),
        differences=(0.0, 0.0, 0.0),
        flips=(0, 0, 0),
        smallest_margin=0.25,
    )
    assert result.exact


def test_widths_are_grouped_by_their_bits():
    other = BASE + np.float32(2**-20)
    result = compare({1: BASE, 2: other, 3: other.copy(), 4: BASE.copy(), 5: other * np.float32(2)})
    assert result.classes == ((1, 4), (2, 3), (5,))
    assert not result.exact


def test_the_last_bit_counts():
    flipped = BASE.copy()
    flipped[1, 2] = np.nextafter(flipped[1, 2], np.float32(0))
    result = compare({1: BASE, 2: flipped})
    assert result.classes == ((1,), (2,))
    assert 0 < result.differences[1] < 1e-6
    assert compare({1: rows([0.0, 1.0]), 2: rows([-0.0, 1.0])}).classes == ((1,), (2,))


def test_probe_reports_differences_and_flips():
    near = rows([1.0, 3.0, 2.0], [0.5, 0.625, -1.0])
    result = compare({1: BASE, 4: near})
    assert result.differences == (0.0, 0.375)
    assert result.flips == (0, 1)
    assert result.smallest_margin == 0.125


def test_impossible_tokens_never_differ():
    banned = rows([1.0, -np.inf, 0.0])
    assert compare({1: banned, 2: banned.copy()}).differences == (0.0, 0.0)
    assert compare({1: banned, 2: rows([1.0, 0.0, 0.0])}).differences == (0.0, np.inf)


class WidthBackend(FakeBackend):
    """A backend whose logits depend on whether a batch is one row, and on cache and batch beside."""

    def decode(self, batch: Batch) -> Logits:
        logits = super().decode(batch)
        single = np.float32(0.25 if len(batch) == 1 else 0.0)
        beside = np.float32(0.5 if self.length(1) and batch.seqs[0] == 0 else 0.0)
        mixed = np.float32(0.1 if len(set(batch.seqs)) > 1 else 0.0)
        return logits + single + beside + mixed


def test_width_independent_backend_passes():
    backend = FakeBackend()
    result = probe_backend(backend, (1, 2, 3, 8))
    assert result.classes == ((1, 2, 3, 8),)
    assert (result.moved, result.beside) == ((), ())
    assert result.exact
    assert result.n_rows == 16


def test_few_widths_use_equal_rows():
    class LateBackend(FakeBackend):
        """A backend whose logits depend on the width in the tenth row only."""

        def decode(self, batch: Batch) -> Logits:
            logits = super().decode(batch)
            late = np.array([position == 409 and len(batch) > 1 for position in batch.positions])
            wanted = [i for i, is_wanted in enumerate(batch.wanted) if is_wanted]
            return (logits + 0.25 * late[wanted][:, None]).astype(np.float32)

    assert probe_backend(LateBackend(), (1, 2)).classes == ((1,), (2,))
    assert probe_backend(LateBackend(), range(1, 17)).classes == ((1,), tuple(range(2, 17)))


def test_a_backend_that_does():
    backend = WidthBackend()
    result = probe_backend(backend, (1, 2, 3, 8))
    assert result.classes == ((1,), (2, 3, 8))
    assert result.differences == pytest.approx((0.0, 0.25, 0.25, 0.25), abs=1e-4)
    assert result.flips == (0, 0, 0, 0)
    assert result.moved == (1, 2, 3, 8)
    assert result.moved_difference == pytest.approx(0.5, abs=1e-4)
    assert result.beside == (2, 3, 8)
    assert result.beside_difference == pytest.approx(0.1, abs=1e-4)


def test_batches_have_their_width():
    backend = FakeBackend(n_batch=512)
    probe_backend(backend, (3, 5, 8))
    prefix, resident = max(backend.widths), 300
    alone = [prefix, *[3] * 6, *[5] * 4, *[8] * 2]
    assert backend.widths == [*alone, resident, *alone, prefix, *[3] * 8, *[5] * 6, *[8] * 4]


@pytest.mark.parametrize("backend", [FakeBackend(), FakeBackend(can_trim=False), FakeBackend(n_batch=8)])
def test_the_cache_is_left_empty(backend: FakeBackend):
    probe_backend(backend, (1, 4, 8))
    assert [backend.length(seq) for seq in range(backend.n_seqs)] == [0] * backend.n_seqs


def test_failure_empties_the_cache():
    class Failing(FakeBackend):
        def decode(self, batch: Batch) -> Logits:
            if self.length(1) and batch.seqs[0] == 0:
                raise BackendError("as asked")
            return super().decode(batch)

    backend = Failing()
    with pytest.raises(BackendError):
        probe_backend(backend, (1, 2))
    assert backend.length(0) == backend.length(1) == 0


def test_one_sequence_shows_no_place():
    result = probe_backend(FakeBackend(n_seqs=1), (1, 2))
    assert result.moved is None
    assert result.exact


def test_a_small_context_gets_a_short_prefix():
    backend = FakeBackend(n_ctx=40, n_cells=64)
    assert probe_backend(backend, (1, 8)).moved == ()
    with pytest.raises(ValueError, match="no room for widths up to 20"):
        probe_backend(backend, (1, 20))
    with pytest.raises(ValueError, match="no room for widths up to 65"):
        probe_backend(FakeBackend(), (65,))


def test_probe_report_is_complete():
    result = probe_backend(WidthBackend(), (1, 2, 8))
    out = io.StringIO()
    Console(file=out, width=100).print(table(result, "a model"), *verdict(result), sep="\n")
    text = out.getvalue()
    assert "a model" in text
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert lines == [
        ["1", "A", "0.0e+00", "0 of 16", "matters", ""],
        ["2", "B", "2.5e-01", "0 of 16", "matters", "matters"],
        ["8", "B", "2.5e-01", "0 of 16", "matters", "matters"],
    ]
    assert "2 classes of widths up to 8" in text
    assert "changes logits by up to 0.5" in text
    assert "change logits by up to 0.1" in text
    assert "less than 1.7 apart. With --exactness width-stable they never do" in " ".join(text.split())


def test_verdict_covers_tried_widths():
    exact = verdict(probe_backend(FakeBackend(), (1, 2)))
    assert exact[0] == "All widths up to 2 give the same bits."
    assert exact[-1].startswith("Verdict: drafts cannot change a text here in steps of up to 2 rows.")
    assert "Not tried" not in " ".join(exact)
    partly = " ".join(verdict(probe_backend(FakeBackend(can_trim=False), (1, 2))))
    assert "Not tried with this model: neighbours." in partly


@pytest.mark.parametrize(
    "changes",
    [{"moved": (1, 2), "moved_difference": 0.5}, {"beside": (2,), "beside_difference": 0.5}],
    ids=["place", "neighbours"],
)
def test_places_alone_may_change_text(changes: dict[str, Any]):
    result = replace(probe_backend(FakeBackend(), (1, 2)), **changes)
    said = verdict(result)
    assert said[0] == "All widths up to 2 give the same bits."
    assert said[-1].startswith("Verdict: drafts change a text only where")
    assert "less than 1 apart" in said[-1]


def test_the_result_is_json():
    result = json.loads(json.dumps(probe_backend(WidthBackend(), (1, 2)).as_json()))
    assert result["classes"] == [[1], [2]]
    assert result["max_difference"] == pytest.approx(0.25, abs=1e-4)
    assert result["exact"] is False


def test_flags(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DUO_THREADS", "3")
    settings = read(ProbeSettings, ["--json", "--max-width", "4", "--flash-attn", "off"])
    assert (settings.json_output, settings.max_width, settings.threads) == (True, 4, 3)
    assert (settings.flash_attn, settings.cache_type_k) == ("off", "f16")
