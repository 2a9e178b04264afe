"""A lead that cannot read pictures says so at the start, in one line."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import pytest

from server.errors import StartupError
from server.pictures import pixels
from server.pictures.projector import Projector

NO_MODEL: Any = None


def file_of(path: Path, architecture: str) -> Path:
    with closing(gguf.GGUFWriter(path, architecture)) as writer:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return path


def test_a_build_without_libmtmd_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "llama_cpp.mtmd_cpp", None)
    path = file_of(tmp_path / "projector.gguf", "clip")
    with pytest.raises(StartupError, match=r"built without libmtmd.*: build it again, by make clean"):
        Projector(path, NO_MODEL, n_threads=1, gpu=False, most_rows=1)


def test_missing_pillow_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(StartupError, match="--mmproj needs Pillow"):
        pixels.check_decoder()
