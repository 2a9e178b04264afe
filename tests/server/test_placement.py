"""Where `duo up` drafts, by machine, models and settings."""

from __future__ import annotations

import pytest

from server.placement import MOST_THREADS, SMALL, Machine, Placement, place
from server.settings import UpSettings

TARGET = 16_000_000_000
TINY, LARGE = TARGET // SMALL - 1, TARGET // 8
LAPTOP, DESKTOP = Machine(2, 0), Machine(16, 0)
ONE_GPU, TWO_GPUS = Machine(16, 1), Machine(16, 2)


def placed(machine: Machine, draft_bytes: int, **said: object) -> Placement:
    return place(UpSettings.model_validate(said), machine, draft_bytes, TARGET)


@pytest.mark.parametrize("draft_bytes", [TINY, LARGE])
@pytest.mark.parametrize(("machine", "sync"), [(LAPTOP, True), (DESKTOP, False), (TWO_GPUS, False)])
def test_where_nothing_is_shared_it_drafts_beside_the_target(machine: Machine, sync: bool, draft_bytes: int):
    placement = placed(machine, draft_bytes)
    assert placement.sync is sync
    assert placement.gpu_layers is None


def test_on_the_only_gpu_models_take_turns_but_a_small_one_drafts_on_the_cpu():
    assert placed(ONE_GPU, LARGE).sync
    assert placed(ONE_GPU, LARGE).gpu_layers is None
    assert placed(ONE_GPU, TINY) == Placement(False, 0, MOST_THREADS)
    assert placed(Machine(2, 1), TINY) == Placement(False, 0, 1)


def test_what_was_said_stands():
    assert not placed(LAPTOP, TINY, draft_mode="async").sync
    assert placed(TWO_GPUS, TINY, draft_mode="sync").sync
    assert placed(ONE_GPU, TINY, draft_mode="sync").gpu_layers is None
    assert placed(ONE_GPU, TINY, gpu_layers_draft=5) == Placement(True, 5, MOST_THREADS)
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
