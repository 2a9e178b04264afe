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
def test_where_nothing_is_shared_it_drafts_beside_the_target(machine: Machine, sync: bool, draft_bytes: int):
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


def test_on_the_only_gpu_models_take_turns_but_a_small_one_drafts_on_the_cpu():
    assert placed(ONE_GPU, LARGE).sync
    assert placed(ONE_GPU, LARGE).gpu_layers is None
    assert placed(ONE_GPU, TINY) == Placement(False, 0, MOST_THREADS)
    assert placed(Machine(2, [ROOMY]), TINY) == Placement(False, 0, 1)


def test_what_was_said_stands():
    assert not placed(LAPTOP, TINY, draft_mode="async").sync
    assert placed(TWO_GPUS, TINY, draft_mode="sync").sync
    assert placed(ONE_GPU, TINY, draft_mode="sync").gpu_layers is None
    assert placed(ONE_GPU, TINY, gpu_layers_draft=5) == Placement(True, 5, MOST_THREADS, beside=False)
    assert placed(ONE_GPU, LARGE, gpu_layers_draft=0) == Placement(False, 0, MOST_THREADS)
    assert placed(ONE_GPU, LARGE, draft_devices="1") == Placement(False, None, MOST_THREADS)
    assert placed(ONE_GPU, LARGE, draft_mode="async") == Placement(False, None, MOST_THREADS)
    assert placed(ONE_GPU, TINY, draft_threads=9).threads == 9


def test_a_target_on_the_cpu_leaves_the_gpu_to_the_drafts():
    assert placed(ONE_GPU, LARGE, gpu_layers=0, gpu_layers_draft=-1) == Placement(False, -1, 1)


def test_a_target_that_needs_the_cores_keeps_them():
    assert placed(ONE_GPU, TINY, gpu_layers=20) == Placement(False, 0, 1)


def test_a_target_on_other_machines_leaves_this_one_to_a_drafter():
    assert not placed(LAPTOP, LARGE, rpc="10.0.0.2:50052").sync
    assert not placed(ONE_GPU, LARGE, rpc="10.0.0.2:50052").sync


def test_several_drafters_share_the_cores_and_none_needs_no_place():
    assert placed(ONE_GPU, TINY, drafters=8).threads == 1
    assert not placed(LAPTOP, TINY, drafters=0).sync


def test_of_several_gpus_the_roomiest_is_the_target_s_and_drafters_have_the_others():
    assert placed(TWO_GPUS, LARGE) == Placement(False, None, MOST_THREADS, 0, (1,))
    assert placed(TWO_GPUS, TINY).draft_gpus == (1,)
    assert placed(Machine(16, [TIGHT - 1, TIGHT, ROOMY]), LARGE, drafters=2).draft_gpus == (1, 0)
    assert placed(Machine(16, [TIGHT, TIGHT, ROOMY]), LARGE).target_gpu == 2
    assert placed(TWO_GPUS, LARGE, ctx_size=4 * 8192).target_gpu == 0


def test_a_gpu_without_room_for_the_draft_model_is_not_for_drafters():
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
def test_who_says_where_a_model_shall_lie_has_it_there(said: dict[str, object]):
    assert placed(TWO_GPUS, LARGE, **said).target_gpu is None
    assert placed(TWO_GPUS, LARGE, **said).draft_gpus == ()


@pytest.mark.parametrize("gpus", [(), (ROOMY,), (TIGHT, TIGHT)])
def test_a_target_that_needs_every_gpu_has_them(gpus: tuple[int, ...]):
    assert placed(Machine(16, gpus), LARGE).target_gpu is None


def test_cores_that_compute_experts_are_not_idle():
    assert placed(ONE_GPU, TINY).threads == MOST_THREADS
    assert placed(ONE_GPU, TINY, cpu_moe=True).threads == 1
