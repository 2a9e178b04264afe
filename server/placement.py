"""Where the drafts of `duo up` are made: beside the target or within its process, on a GPU or not. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from server.settings import UpSettings

FEW_CORES = 4
SMALL = 100  # times smaller than the target: a draft model for which CPU cores are as good as the GPU
MOST_THREADS = 4  # of a drafter whose target leaves the cores alone


@dataclass(frozen=True, slots=True)
class Machine:
    n_cores: int
    n_gpus: int


@dataclass(frozen=True, slots=True)
class Placement:
    """sync: in the target's process, between steps. gpu_layers: of the draft model, None for as many as the
    target's. threads: of each drafter."""

    sync: bool
    gpu_layers: int | None
    threads: int


def place(settings: UpSettings, machine: Machine, draft_bytes: int, target_bytes: int) -> Placement:
    """By the sizes of the two models. Processes that share few cores, or a GPU, slow each other down more
    than drafting beside the target gains (docs/adr/0006). So where the target has the only GPU, a small model
    drafts on the CPU, and another one in turn with the target. What settings say stands."""
    on_gpu = settings.gpu_layers != 0 and machine.n_gpus > 0
    shared = on_gpu and machine.n_gpus == 1 and settings.draft_devices is None and not settings.rpc
    sync, gpu_layers = settings.draft_mode == "sync", settings.gpu_layers_draft
    if shared and not sync and gpu_layers is None and SMALL * draft_bytes < target_bytes:
        gpu_layers = 0
    if settings.draft_mode == "auto" and settings.drafters:
        few = machine.n_cores < FEW_CORES and not machine.n_gpus and not settings.rpc
        sync = gpu_layers != 0 if shared else few
    leaves_cores = on_gpu and settings.gpu_layers < 0
    idle = machine.n_cores // (2 * max(1, settings.drafters)) if leaves_cores else 1
    return Placement(sync, gpu_layers, settings.draft_threads or max(1, min(MOST_THREADS, idle)))
