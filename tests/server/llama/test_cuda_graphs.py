"""Recorded graphs on a CUDA device: one for each shape of decode, or none with 16-bit weights."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from server.llama import cuda_graphs
from server.llama.cuda_graphs import (
    BY_DUO,
    MOST_SLOTS,
    OFF,
    each_has_its_own,
    forgo_graphs,
    forgo_graphs_of_many,
    forgo_graphs_on_host,
)
from server.llama.devices import CPU, GPU, GgmlDevice
from server.llama.options import HOST, TensorPlace, Weights
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


def test_half_precision_matrices_are_recognised(at: Path):
    small, large = np.zeros(64, np.float16), np.zeros(N, np.float16)
    assert not has_half_matrices(write(at, norm=small, matrix=np.zeros(N, np.float32)))
    assert has_half_matrices(write(at, norm=small, matrix=large))
    assert tensors(at) == {"norm": 128, "matrix": 2 * N}


def test_half_precision_avoids_updated_graphs(at: Path, monkeypatch: pytest.MonkeyPatch):
    have(monkeypatch, "CUDA0", "CPU")
    write(at, matrix=np.zeros(N, np.float16))
    assert forgo_graphs(at)
    assert os.environ[OFF] == BY_DUO


@pytest.mark.usefixtures("at")
def test_many_slots_have_no_graphs(monkeypatch: pytest.MonkeyPatch):
    have(monkeypatch, "CUDA0", "CPU")
    assert not forgo_graphs_of_many(MOST_SLOTS)
    assert each_has_its_own(Weights(), whole=True)
    assert forgo_graphs_of_many(MOST_SLOTS + 1)
    assert not each_has_its_own(Weights(), whole=True)


@pytest.mark.usefixtures("at")
def test_no_graphs_ignore_many_slots(monkeypatch: pytest.MonkeyPatch):
    have(monkeypatch, "Metal", "CPU")
    assert not forgo_graphs_of_many(MOST_SLOTS + 1)
    assert OFF not in os.environ


def test_users_setting_stays(at: Path, monkeypatch: pytest.MonkeyPatch):
    have(monkeypatch, "CUDA0", "CPU")
    write(at, matrix=np.zeros(N, np.float16))
    os.environ[OFF] = ""
    assert not forgo_graphs(at)
    assert os.environ[OFF] == ""


def test_other_devices_and_other_weights_keep_theirs(at: Path, monkeypatch: pytest.MonkeyPatch):
    have(monkeypatch, "Metal", "CPU")
    write(at, matrix=np.zeros(N, np.float16))
    assert not forgo_graphs(at)
    have(monkeypatch, "CUDA0", "CPU")
    write(at, matrix=np.zeros(N, np.float32))
    assert not forgo_graphs(at)
    assert OFF not in os.environ


@pytest.mark.parametrize(("n_gpu_layers", "set_to"), [(0, BY_DUO), (4, None), (-1, None)])
@pytest.mark.usefixtures("at")
def test_host_model_has_no_graphs(n_gpu_layers: int, set_to: str | None):
    forgo_graphs_on_host(Weights(n_gpu_layers=n_gpu_layers))
    assert os.environ.get(OFF) == set_to


@pytest.fixture
def one_gpu(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the machine one GPU.

    at: gives the test an environment of its own.
    """
    have(monkeypatch, "CUDA0", "CPU")


@pytest.mark.usefixtures("one_gpu")
def test_gpu_model_has_graph_per_shape(monkeypatch: pytest.MonkeyPatch):
    assert each_has_its_own(Weights(), whole=True)
    assert each_has_its_own(Weights(n_gpu_layers=99), whole=True)
    have(monkeypatch, "CUDA0", "CUDA1", "CPU")
    assert not each_has_its_own(Weights(), whole=True), "the second GPU begins with an operation of the model"
    assert each_has_its_own(Weights(split_mode="none"), whole=True)
    have(monkeypatch, "Metal", "CPU")
    assert not each_has_its_own(Weights(), whole=True)
    have(monkeypatch, "CPU")
    assert not each_has_its_own(Weights(), whole=True)


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        pytest.param(Weights(n_gpu_layers=20), False, id="partly on the host"),
        pytest.param(Weights(places=(TensorPlace("exps", HOST),)), True, id="experts on the host"),
        pytest.param(Weights(rpc=("far:1",)), True, id="with a lender"),
        pytest.param(Weights(split_mode="tensor"), True, id="in parts that take no sampler"),
    ],
)
def test_split_model_has_one_graph(weights: Weights, whole: bool):
    assert not each_has_its_own(weights, whole=whole)


@pytest.mark.usefixtures("one_gpu")
def test_user_can_disable_graphs():
    os.environ[OFF] = "1"
    assert not each_has_its_own(Weights(), whole=True)
