"""16-bit weights on a CUDA device: no recorded graphs, or of one width beyond those of ggml's own kernels."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from server.llama import cuda_graphs
from server.llama.cuda_graphs import OFF, OWN_ROWS, forgo_graphs, own_rows
from server.llama.devices import CPU, GPU, GgmlDevice
from server.llama.tensors import MATRIX, has_half_matrices, tensors

N = MATRIX // 2  # halves of a large matrix


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "environ", dict[str, str]())
    return tmp_path / "model.gguf"


def write(path: Path, **arrays: np.ndarray) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def have(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    found = [GgmlDevice(name, name, GPU if name != "CPU" else CPU, 1, 1) for name in names]
    monkeypatch.setattr(cuda_graphs, "devices", lambda: found)


def test_half_matrices_are_told_from_half_vectors_and_other_types(at: Path):
    small, large = np.zeros(64, np.float16), np.zeros(N, np.float16)
    assert not has_half_matrices(write(at, norm=small, matrix=np.zeros(N, np.float32)))
    assert has_half_matrices(write(at, norm=small, matrix=large))
    assert tensors(at) == {"norm": 128, "matrix": 2 * N}


def test_many_slots_on_cuda_have_no_graphs(at: Path, monkeypatch: pytest.MonkeyPatch):
    have(monkeypatch, "CUDA0", "CPU")
    write(at, matrix=np.zeros(N, np.float16))
    assert not forgo_graphs(at, OWN_ROWS)
    assert OFF not in os.environ
    assert own_rows(at) == OWN_ROWS
    assert forgo_graphs(at, OWN_ROWS + 1)
    assert os.environ[OFF] == "1"
    assert own_rows(at) == 0


def test_any_number_of_guesses_has_no_graphs(at: Path, monkeypatch: pytest.MonkeyPatch):
    have(monkeypatch, "CUDA0", "CPU")
    write(at, matrix=np.zeros(N, np.float16))
    assert forgo_graphs(at, 1, gate=False)
    assert os.environ[OFF] == "1"


def test_what_the_user_set_stays(at: Path, monkeypatch: pytest.MonkeyPatch):
    have(monkeypatch, "CUDA0", "CPU")
    write(at, matrix=np.zeros(N, np.float16))
    os.environ[OFF] = ""
    assert not forgo_graphs(at, 64)
    assert os.environ[OFF] == ""


def test_other_devices_and_other_weights_keep_theirs(at: Path, monkeypatch: pytest.MonkeyPatch):
    have(monkeypatch, "Metal", "CPU")
    write(at, matrix=np.zeros(N, np.float16))
    assert not forgo_graphs(at, 64)
    have(monkeypatch, "CUDA0", "CPU")
    write(at, matrix=np.zeros(N, np.float32))
    assert not forgo_graphs(at, 64)
    assert own_rows(at) == 0
    assert OFF not in os.environ
