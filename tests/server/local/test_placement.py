"""Where `duo up` drafts, by machine, models and settings."""

from __future__ import annotations

import pytest

from server.local.placement import MOST_THREADS, SMALL, Machine, Placement, place
from server.settings import UpSettings

TARGET = 16_000_000_000
TINY, LARGE = TARGET // SMALL - 1, TARGET // 8
ROOMY, TIGHT = 32_000_000_000, 31_999_999_999  # bytes free on a GPU
LAPTOP, DESKTOP = Machine(2), Machine(16)
ONE_GPU, TWO_GPUS = Machine(16, [ROOMY]), Machine(16, [ROOMY, ROOMY])


def placed(machine: Machine, draft_bytes: int, **said: object) -> Placement:
    return place(UpSettings.model_validate(said), machine, draft_bytes, TARGET)


@pytest.mark.parametrize("draft_bytes", [TINY, LARGE])
@pytest.mark.parametrize(("machine", "sync"), [(LAPTOP, True), (DESKTOP, False), (TWO_GPUS, False)])
def test_unshared_device_drafts_beside_target(machine: Machine, sync: bool, draft_bytes: int):
    placement = placed(machine, draft_bytes)
    assert placement.sync is sync
    assert placement.gpu_layers is None


def test_many_cores_are_split_between_the_models():
    assert placed(DESKTOP, LARGE) == Placement(False, None, 4, target_threads=12)
    assert placed(DESKTOP, LARGE, drafters=2) == Placement(False, None, 2, target_threads=12)
    assert placed(DESKTOP, TINY) == Placement(False, None, 1, target_threads=15)
    assert placed(DESKTOP, LARGE, draft_threads=6) == Placement(False, None, 6, target_threads=10)
    for whole in (
        placed(DESKTOP, LARGE, drafters=0),
        placed(DESKTOP, LARGE, draft_mode="sync"),
        placed(DESKTOP, LARGE, rpc="10.0.0.2:50052"),
        placed(Machine(4), LARGE),
        placed(ONE_GPU, LARGE),
    ):
        assert whole.target_threads is None


@pytest.mark.parametrize("draft_bytes", [TINY, LARGE])
def test_only_gpu_drafts_in_the_lead(draft_bytes: int):
    assert placed(ONE_GPU, draft_bytes) == Placement(True, None, MOST_THREADS)
    assert placed(Machine(2, [ROOMY]), draft_bytes) == Placement(True, None, 1)


def test_explicit_placement_stands():
    assert not placed(LAPTOP, TINY, draft_mode="async").sync
    assert placed(TWO_GPUS, TINY, draft_mode="sync").sync
    assert placed(ONE_GPU, TINY, draft_mode="sync").gpu_layers is None
    assert placed(ONE_GPU, TINY, gpu_layers_draft=5) == Placement(True, 5, MOST_THREADS)
    assert placed(ONE_GPU, LARGE, gpu_layers_draft=0) == Placement(False, 0, MOST_THREADS)
    assert placed(ONE_GPU, LARGE, draft_devices="1") == Placement(False, None, MOST_THREADS)
    assert placed(ONE_GPU, LARGE, draft_mode="async") == Placement(False, None, MOST_THREADS)
    assert placed(ONE_GPU, TINY, gpu_layers_draft=0, draft_threads=9).threads == 9


def test_cpu_target_leaves_gpu_to_drafts():
    assert placed(ONE_GPU, LARGE, gpu_layers=0, gpu_layers_draft=-1) == Placement(False, -1, 1)


def test_busy_target_keeps_its_cores():
    assert placed(ONE_GPU, TINY, gpu_layers=20, gpu_layers_draft=0) == Placement(False, 0, 1)


def test_remote_target_leaves_machine_to_drafter():
    assert not placed(LAPTOP, LARGE, rpc="10.0.0.2:50052").sync
    assert not placed(ONE_GPU, LARGE, rpc="10.0.0.2:50052").sync


def test_drafters_divide_the_cores():
    assert placed(ONE_GPU, TINY, drafters=8).threads == 1
    assert not placed(LAPTOP, TINY, drafters=0).sync


def test_target_takes_the_roomiest_gpu():
    assert placed(TWO_GPUS, LARGE) == Placement(False, None, MOST_THREADS, 0, (1,))
    assert placed(TWO_GPUS, TINY).draft_gpus == (1,)
    assert placed(Machine(16, [TIGHT - 1, TIGHT, ROOMY]), LARGE, drafters=2).draft_gpus == (1, 0)
    assert placed(Machine(16, [TIGHT, TIGHT, ROOMY]), LARGE).target_gpu == 2
    assert placed(TWO_GPUS, LARGE, ctx_size=4 * 8192).target_gpu == 0


def test_full_gpu_gets_no_drafter():
    full = 2 * LARGE - 1
    assert placed(Machine(16, [ROOMY, full]), LARGE) == Placement(False, None, MOST_THREADS)
    assert placed(Machine(16, [full, ROOMY, 2 * LARGE]), LARGE, drafters=2).draft_gpus == (2,)


@pytest.mark.parametrize(
    "said",
    [
        {"split_mode": "layer"},
        {"main_gpu": 1},
        {"tensor_split": "1,1"},
        {"draft_devices": "1"},
        {"draft_mode": "sync"},
        {"gpu_layers": 10},
        {"gpu_layers_draft": 0},
        {"drafters": 0},
        {"rpc": "10.0.0.2:50052"},
        {"ctx_size": 4 * 8192 + 1},
    ],
)
def test_explicit_placement_is_kept(said: dict[str, object]):
    assert placed(TWO_GPUS, LARGE, **said).target_gpu is None
    assert placed(TWO_GPUS, LARGE, **said).draft_gpus == ()


@pytest.mark.parametrize("gpus", [(), (ROOMY,), (TIGHT, TIGHT)])
def test_large_target_takes_every_gpu(gpus: tuple[int, ...]):
    assert placed(Machine(16, gpus), LARGE).target_gpu is None


def test_cores_that_compute_experts_are_not_idle():
    assert placed(ONE_GPU, TINY).threads == MOST_THREADS
    assert placed(ONE_GPU, TINY, cpu_moe=True).threads == 1
