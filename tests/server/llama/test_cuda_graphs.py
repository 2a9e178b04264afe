"""Recorded graphs on a CUDA device: none, or of one width beyond those of ggml's own kernels, with 16-bit
weights; one of their own for single rows."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from server.llama import cuda_graphs
from server.llama.cuda_graphs import (
    FEWEST_ROWS,
    KEPT_APART,
    OFF,
    OWN_ROWS,
    forgo_graphs,
    forgo_graphs_on_host,
    keep_apart,
    own_rows,
    places_apart,
)
from server.llama.devices import CPU, GPU, GgmlDevice
from server.llama.options import HOST, TensorPlace, Weights
from server.llama.tensors import MATRIX, has_half_matrices, tensors, unmatched

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


@pytest.mark.parametrize(("n_gpu_layers", "set_to"), [(0, "1"), (4, None), (-1, None)])
@pytest.mark.usefixtures("at")
def test_a_model_in_the_hosts_memory_has_no_graphs(n_gpu_layers: int, set_to: str | None):
    forgo_graphs_on_host(Weights(n_gpu_layers=n_gpu_layers))
    assert os.environ.get(OFF) == set_to


@pytest.fixture
def one_gpu(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has one GPU. at: gives the test an environment of its own."""
    have(monkeypatch, "CUDA0", "CPU")


@pytest.mark.usefixtures("one_gpu")
def test_single_rows_have_a_graph_of_their_own_where_all_weights_are_on_one_gpu(
    monkeypatch: pytest.MonkeyPatch,
):
    assert places_apart(Weights()) == (), "nobody asked for it"
    keep_apart(Weights(), Weights())
    places = places_apart(Weights())
    named = ("blk.0.attn_norm.weight", "blk.32.nextn.enorm.weight")
    assert [unmatched(named, [place]) for place in places] == [[], []]
    others = "blk.10.attn_norm.weight", "blk.0.attn_norm_2.weight", "blk.32.nextn.hnorm.weight"
    assert len(unmatched(others, places)) == len(places), "no other tensor"
    assert {place.buffer for place in places} == {HOST}
    have(monkeypatch, "CUDA0", "CUDA1", "CPU")
    assert places_apart(Weights()) == (), "llama.cpp would have the GPUs take turns"
    assert places_apart(Weights(split_mode="none")) == places
    have(monkeypatch, "Metal", "CPU")
    assert places_apart(Weights()) == ()


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Weights(n_gpu_layers=0), id="on the host"),
        pytest.param(Weights(n_gpu_layers=20), id="partly on the host"),
        pytest.param(Weights(places=(TensorPlace("exps", HOST),)), id="experts on the host"),
        pytest.param(Weights(rpc=("far:1",)), id="with a lender"),
    ],
)
def test_a_model_that_is_partly_elsewhere_shares_its_graph(other: Weights):
    """Nor has another one in its process its own: the variable of ggml is for both."""
    keep_apart(Weights(), other)
    assert FEWEST_ROWS not in os.environ
    keep_apart(Weights())
    assert places_apart(other) == ()


@pytest.mark.usefixtures("one_gpu")
def test_graphs_are_shared_where_the_user_says_so():
    os.environ[FEWEST_ROWS] = "32"
    keep_apart(Weights())
    assert os.environ[FEWEST_ROWS] == "32"
    assert places_apart(Weights()) == ()
    os.environ[FEWEST_ROWS] = KEPT_APART
    os.environ[OFF] = "1"
    assert places_apart(Weights()) == (), "there are no graphs"
