"""GGUF in, GGUF out: what changes and, above all, what does not."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.gguf_file import GGUFSource, Kind, PlannedTensor, write
from benchmarks.inflate import convert, main
from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server.errors import StartupError


def metadata(path: Path) -> dict[str, object]:
    fields = gguf.GGUFReader(path).fields.items()
    return {key: (field.types, field.contents()) for key, field in fields if not key.startswith("GGUF.")}


def test_f32_keeps_values_and_metadata(tmp_path: Path):
    out = tmp_path / "deep" / "draft-f32.gguf"
    convert(DRAFT, out)
    before, after = GGUFSource(DRAFT), GGUFSource(out)
    assert after.names == before.names
    for name in before.names:
        np.testing.assert_array_equal(after.values(name), before.values(name))
    assert {tensor.tensor_type for tensor in gguf.GGUFReader(out).tensors} == {Kind.F32}
    old, new = metadata(DRAFT), metadata(out)
    assert new.pop("general.file_type") != old.pop("general.file_type")
    assert list(new) == list(old)
    assert new == old


def test_converting_to_own_type_changes_nothing(tmp_path: Path):
    convert(DRAFT, tmp_path / "again.gguf", "q8_0")
    before, after = gguf.GGUFReader(DRAFT), gguf.GGUFReader(tmp_path / "again.gguf")
    for old, new in zip(before.tensors, after.tensors, strict=True):
        np.testing.assert_array_equal(np.asarray(old.data), np.asarray(new.data), err_msg=old.name)


def test_bf16_is_rounded_to_the_nearest(tmp_path: Path):
    convert(DRAFT, tmp_path / "bf16.gguf", "bf16")
    name = "blk.0.ffn_up.weight"
    values = GGUFSource(DRAFT).values(name)
    want = gguf.dequantize(gguf.quantize(values, Kind.BF16), Kind.BF16)
    np.testing.assert_array_equal(GGUFSource(tmp_path / "bf16.gguf").values(name), want)


def test_unfinished_file_does_not_appear(tmp_path: Path):
    def fail() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        raise OSError("no space left")

    out = tmp_path / "out.gguf"
    out.write_text("what was there before")
    tensor = PlannedTensor("output_norm.weight", (4,), Kind.F32, fail)
    with pytest.raises(OSError, match="no space left"):
        write(out, GGUFSource(DRAFT), Kind.F32, [tensor], {})
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    assert out.read_text() == "what was there before"


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(StartupError, match="no model file at"):
        GGUFSource(tmp_path / "missing.gguf")
    (tmp_path / "text.gguf").write_text("not a model " * 100)
    assert main(["--model", str(tmp_path / "text.gguf"), "--out", str(tmp_path / "out.gguf")]) == 1
    assert "is not a complete GGUF file" in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()


def test_a_file_cut_short_is_refused(tmp_path: Path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(DRAFT.read_bytes()[:1_000_000])
    with pytest.raises(StartupError, match="is not a complete GGUF file"):
        GGUFSource(cut)
