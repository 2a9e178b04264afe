"""Decide where `duo up` drafts, beside the target or in its process, and which GPU each model gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.settings import UpSettings

FEW_CORES = 4
# Without a GPU, on SPLIT_CORES or more, a draft model that is not SMALL gets one of every
# CORES_PER_DRAFT_THREAD cores, and the target gets the others. On 16 cores, an 8B target with a 1B draft
# model was 1.92 times as fast as without drafts; with half of the cores for the draft model 1.48 times
# (RESULTS.md, section H), with one core 0.94 times.
SPLIT_CORES, CORES_PER_DRAFT_THREAD = 8, 4
SMALL = 100  # a draft model this many times smaller than the target is quick enough on one core
MOST_THREADS = 4  # maximum threads of a drafter whose target runs on the GPU
# Minimum free memory of a GPU, as a multiple of the size of its model: room for the model and its KV cache,
# if each conversation has at most USUAL_CELLS cells.
ROOM = 2
USUAL_CELLS = 8192


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware of this machine."""

    n_cores: int
    gpus: Sequence[int] = ()  # free memory of each, in bytes

    @property
    def has_few_cores(self) -> bool:
        """Return True if a drafter process would take cores that the target needs."""
        return self.n_cores < FEW_CORES and not self.gpus


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs and threads of target and drafts."""

    sync: bool  # a draft model runs in the target's process, between its steps; no drafter process runs here
    gpu_layers: int | None  # of the draft model; None: as many as the target's
    threads: int  # CPU threads of each drafter
    target_gpu: int | None = None  # the only GPU of the target; None: as the settings say
    draft_gpus: tuple[int, ...] = ()  # the other GPUs, for drafters
    target_threads: int | None = None  # CPU threads of the target; None: one for every core


NO_DRAFTS = Placement(sync=False, gpu_layers=None, threads=1)
"""The placement without a draft model: the target has the whole machine."""


def place(settings: UpSettings, machine: Machine, draft_bytes: int, target_bytes: int) -> Placement:
    """Decide where target and drafts are computed, given the sizes of both models in bytes.

    Processes that share few cores, or a GPU, slow each other more than drafting beside the target gains
    (docs/adr/0006). So if one of several GPUs has room for the target, drafters get the others. If the target
    has the only GPU, the draft model runs in the target's process: with one client, a draft model of a
    thousandth of the target's size brought 1.18 times the tokens per second that it brought on the CPU
    (RESULTS.md, section E). Explicit settings are kept.
    """
    on_gpu = settings.gpu_layers != 0 and len(machine.gpus) > 0
    free = settings.draft_devices is None and not settings.rpc
    shared = on_gpu and len(machine.gpus) == 1 and free
    sync, gpu_layers = settings.draft_mode == "sync", settings.gpu_layers_draft
    if settings.draft_mode == "auto" and settings.drafters:
        sync = gpu_layers != 0 if shared else machine.has_few_cores and not settings.rpc
    leaves_cores = on_gpu and settings.gpu_layers < 0 and not settings.weights.places
    idle = machine.n_cores // (2 * max(1, settings.drafters)) if leaves_cores else 1
    threads = settings.draft_threads or max(1, min(MOST_THREADS, idle))
    on_cores = not sync and not machine.gpus and not settings.rpc
    if on_cores and settings.drafters and machine.n_cores >= SPLIT_CORES:
        small = SMALL * draft_bytes < target_bytes
        share = 1 if small else max(1, machine.n_cores // (CORES_PER_DRAFT_THREAD * settings.drafters))
        threads = settings.draft_threads or share
        left = max(1, machine.n_cores - threads * settings.drafters)
        return Placement(sync, gpu_layers, threads, target_threads=left)
    async_on_gpu = settings.gpu_layers < 0 and gpu_layers != 0 and settings.drafters > 0 and not sync
    if free and async_on_gpu and _leaves_open(settings):
        return Placement(sync, gpu_layers, threads, *_separate_gpus(machine.gpus, target_bytes, draft_bytes))
    return Placement(sync, gpu_layers, threads)


def _leaves_open(settings: UpSettings) -> bool:
    """Return True if the settings neither place the target on GPUs nor ask for an unusual KV cache."""
    said = settings.model_fields_set & {"split_mode", "tensor_split", "main_gpu"}
    return not said and settings.ctx_size <= USUAL_CELLS * settings.parallel


def _separate_gpus(
    gpus: Sequence[int], target_bytes: int, draft_bytes: int
) -> tuple[int | None, tuple[int, ...]]:
    """Return the index of the target's GPU, and the indices of the drafters' GPUs, most memory first.

    The target gets the GPU with the most free memory. Drafters get the other GPUs with room for their model.
    If there is none, or if the target needs several GPUs, return (None, ()).

    gpus: Free memory of each GPU, in bytes.
    """
    first, *others = sorted(range(len(gpus)), key=lambda gpu: -gpus[gpu]) or [0]
    others = [gpu for gpu in others if gpus[gpu] >= ROOM * draft_bytes]
    if not others or ROOM * target_bytes > gpus[first]:
        return None, ()
    return first, tuple(others)
