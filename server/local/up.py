"""duo up: everything on one machine: an embedded Redis, drafters as children, and the lead."""

from __future__ import annotations

import shlex
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from server.errors import StartupError
from server.flags import n_cores
from server.lead.listening import open_socket
from server.lead.loading import assistant_of, head_of, prepared
from server.lead.startup import Site, run_lead
from server.llama.cuda_graphs import keep_apart
from server.llama.library import free_memory_of_gpus
from server.llama.parts import parts
from server.llama.tensors import on_host
from server.local.children import Child, drafter
from server.local.embedded import EmbeddedServer
from server.local.placement import Machine, Placement, place
from server.settings import BUNDLED_DRAFT, UpSettings
from server.speculation.wire.redis_client import check


def up(settings: UpSettings) -> int:
    """Run until stopped; returns the exit status. Raises StartupError."""
    if settings.draft_model and not settings.draft_model.is_file():
        raise StartupError(f"no model file at {settings.draft_model}: give a GGUF file with --draft-model")
    keep_apart(settings.weights, settings.draft_weights)
    settings = prepared(settings)
    with ExitStack() as stack:
        listener = stack.enter_context(open_socket(settings.host, settings.port))
        url, elsewhere = _redis(stack, settings)
        draft = settings.draft_model or BUNDLED_DRAFT
        machine = Machine(n_cores(), free_memory_of_gpus())
        if apart := settings.draft_cores:
            own = {
                "threads": settings.threads or n_cores(),
                "draft_threads": settings.draft_threads or len(apart),
            }
            settings = settings.model_copy(update=own)
        on_cpu = on_host(settings.model, settings.weights.places)
        placement = place(settings, machine, _size(draft), _size(settings.model) - on_cpu)
        if settings.verify == "rejection" and not placement.sync:
            raise StartupError("--verify rejection is for --draft-mode sync: other drafts would bias it")
        for i in range(settings.drafters if placement.beside and settings.verify == "exact" else 0):
            stack.enter_context(closing(_drafter(settings, placement, url, i)))
        if (gpu := placement.target_gpu) is not None:
            settings = settings.model_copy(update={"split_mode": "none", "main_gpu": gpu})
        inside = draft if placement.sync else None
        here = _for_drafters(settings)
        here = here and here.absolute()
        site = Site(listener, url, settings.threads or placement.target_threads or machine.n_cores, inside)
        if placement.sync and placement.beside:
            advice = (
                ""
                if settings.redis or elsewhere
                else "; --redis-listen 0.0.0.0 lets another machine draft, too"
            )
            site = replace(
                site, remark=f"{machine.n_cores} cores: the draft model runs inside the lead{advice}"
            )
        return run_lead(settings, replace(site, join=_join(settings, url, here), join_elsewhere=elsewhere))


def _redis(stack: ExitStack, settings: UpSettings) -> tuple[str, str | None]:
    """The URL of Redis, and the command with which a drafter on another machine joins, None if it cannot.
    Raises StartupError."""
    if settings.redis:
        if settings.redis_listen:
            raise StartupError("--redis-listen is for the embedded Redis: leave out --redis")
        check(settings.redis, settings.pool)
        return settings.redis, None
    server = stack.enter_context(EmbeddedServer(listen=settings.redis_listen))
    elsewhere = server.url_elsewhere
    model = _for_drafters(settings)
    return server.url, elsewhere and _join(settings, elsewhere, model and Path(model.name))


def _for_drafters(settings: UpSettings) -> Path | None:
    """The draft model that was asked for, unless only the lead can draft with it."""
    return None if head_of(settings) or assistant_of(settings) else settings.draft_model


def _join(settings: UpSettings, url: str, model: Path | None) -> str:
    """The command with which another drafter joins. model: its file there."""
    pool = ["--pool", settings.pool] if settings.pool != "default" else []
    flags = ["--model", str(model)] if model else []
    return shlex.join(["duo", "draft", "--redis", url, *pool, *flags])


def _size(model: Path) -> int:
    """Bytes of all parts of its file. Raises StartupError."""
    return sum(part.stat().st_size for part in parts(model))


def _drafter(settings: UpSettings, placement: Placement, url: str, i: int) -> Child:
    name, gpus = f"drafter-{i + 1}", placement.draft_gpus
    flags = ["--pool", settings.pool, "--threads", str(placement.threads)]
    if settings.draft_model:
        flags += ["--model", str(settings.draft_model)]
    if placement.gpu_layers is not None:
        flags += ["--gpu-layers", str(placement.gpu_layers)]
    if places := settings.draft_weights.places:
        flags += ["--override-tensor", ",".join(f"{place.pattern}={place.buffer}" for place in places)]
    if cores := settings.draft_cores:
        flags += ["--cpu-mask", f"{sum(1 << core for core in cores):x}"]
    if gpus:
        flags += ["--split-mode", "none", "--main-gpu", str(gpus[i % len(gpus)])]
    devices = {} if settings.draft_devices is None else {"CUDA_VISIBLE_DEVICES": settings.draft_devices}
    return drafter(name, flags, {"DUO_REDIS": url, **devices})  # the URL may have a password
