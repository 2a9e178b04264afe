"""duo up: everything on one machine, from nothing. An embedded Redis, drafters as children, and the lead."""

from __future__ import annotations

from contextlib import ExitStack

from server.children import Child
from server.embedded import EmbeddedServer
from server.errors import StartupError
from server.flags import n_cores
from server.lead import run_lead
from server.llama.library import has_gpu
from server.loading import prepared
from server.settings import BUNDLED_DRAFT, UpSettings
from server.site import Site, open_socket
from server.speculation.streams import check

FEW_CORES = 4


def up(settings: UpSettings) -> int:
    """Run until stopped; returns the exit status. Raises StartupError."""
    settings = prepared(settings)
    if settings.draft_model and not settings.draft_model.is_file():
        raise StartupError(f"no model file at {settings.draft_model}: give a GGUF file with --draft-model")
    with ExitStack() as stack:
        listener = stack.enter_context(open_socket(settings.host, settings.port))
        url = settings.redis or stack.enter_context(EmbeddedServer()).url
        if settings.redis:
            check(url)
        sync = _drafts_synchronously(settings)
        if settings.verify == "rejection" and not sync:
            raise StartupError("--verify rejection is for --draft-mode sync: other drafts would bias it")
        for i in range(1, 1 + (0 if sync else settings.drafters)):
            stack.enter_context(_drafter(settings, url, f"drafter-{i}"))
        draft = (settings.draft_model or BUNDLED_DRAFT) if sync else None
        # A small draft model is idle most of the time, so the lead takes all cores; --threads says otherwise.
        return run_lead(settings, Site(listener, url, settings.threads or n_cores(), draft))


def _drafts_synchronously(settings: UpSettings) -> bool:
    """Whether the draft model shall run in the lead. Processes that share few cores slow each other down more
    than drafting beside the lead gains; where one has a GPU, or cores are many, it gains."""
    if settings.draft_mode != "auto":
        return settings.draft_mode == "sync"
    return settings.drafters > 0 and n_cores() < FEW_CORES and not has_gpu()


def _drafter(settings: UpSettings, url: str, name: str) -> Child:
    flags = ["--redis", url, "--pool", settings.pool, "--name", name]
    flags += ["--threads", str(settings.draft_threads or 1)]
    if settings.draft_model:
        flags += ["--model", str(settings.draft_model)]
    if settings.gpu_layers_draft is not None:
        flags += ["--gpu-layers", str(settings.gpu_layers_draft)]
    devices = settings.draft_devices
    return Child(name, flags, {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices})
