"""duo up: run everything on one machine: an embedded Redis, drafters as children, and the lead."""

from __future__ import annotations

import shlex
import shutil
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from server.errors import StartupError
from server.flags import n_cores
from server.lead.beginning import run_lead
from server.lead.listener import open_socket
from server.lead.loading import assistant_of, for_browsers, head_of, prepared
from server.lead.site import Site
from server.llama.library import free_memory_of_gpus
from server.llama.parts import parts
from server.llama.tensors import has_block, on_host
from server.local.bundled import DRAFTS, SMOLLM2_DRAFT, SMOLLM2_SMALL, draft_for
from server.local.children import Child, drafter
from server.local.embedded import EmbeddedServer
from server.local.placement import NO_DRAFTS, Machine, Placement, place
from server.settings import UpSettings
from server.speculation.wire.redis_url import without_password
from server.stop_signals import raise_when_requested
from server.terminal.console import LogConsole, log_to

HERE, ELSEWHERE = "on this machine only", "from other machines too"


def up(settings: UpSettings) -> int:
    """Run duo up until asked to stop, and return the exit status. Raises StartupError."""
    if settings.draft_model and not settings.draft_model.is_file():
        raise StartupError(f"no model file at {settings.draft_model}: give a GGUF file with --draft-model")
    log_to(LogConsole(highlight=False), settings.log_format)
    raise_when_requested()
    with ExitStack() as stack:
        listener = stack.enter_context(open_socket(settings.host, settings.port))
        settings = _with_threads(prepared(settings))
        machine = Machine(n_cores(), free_memory_of_gpus())
        draft = draft_for(settings, machine)
        url, elsewhere = _open_redis(stack, settings)
        placement = _place_models(settings, machine, draft)
        _check_can_draft(settings, placement, draft)
        n_drafters = settings.drafters if draft and not placement.sync else 0
        for i in range(n_drafters):
            assert draft is not None
            stack.enter_context(closing(_start_drafter(settings, placement, draft, url, i)))
        if (gpu := placement.target_gpu) is not None:
            settings = settings.model_copy(update={"split_mode": "none", "main_gpu": gpu})
        n_threads = settings.threads or placement.target_threads or machine.n_cores
        inside = draft if placement.sync else None
        site = Site(listener, url, n_threads, inside, for_browsers(settings, draft))
        if draft is None:
            site = replace(site, remark=_remark_without(settings))
        elif placement.sync and settings.draft_mode == "auto" and machine.has_few_cores:
            site = replace(site, remark=_remark_on_cores(settings, machine, elsewhere))
        return run_lead(settings, _site_with_joins(settings, site, draft, url, elsewhere))


def _with_threads(settings: UpSettings) -> UpSettings:
    """Return the settings. If drafters have their own cores, fill in numbers of threads that are not set."""
    if not settings.draft_cores:
        return settings
    own = {
        "threads": settings.threads or n_cores(),
        "draft_threads": settings.draft_threads or len(settings.draft_cores),
    }
    return settings.model_copy(update=own)


def _place_models(settings: UpSettings, machine: Machine, draft: Path | None) -> Placement:
    """Return where target and drafts are computed. Raises StartupError."""
    if draft is None:
        return NO_DRAFTS
    on_cpu = on_host(settings.model, settings.weights.places)
    return place(settings, machine, _model_size(draft), _model_size(settings.model) - on_cpu)


def _check_can_draft(settings: UpSettings, placement: Placement, draft: Path | None) -> None:
    """Raise StartupError if the settings want a draft model in the lead and there is none."""
    if settings.draft_mode == "sync" and draft is None:
        raise StartupError("--draft-mode sync needs a draft model: give a GGUF file with --draft-model")
    if settings.verify == "rejection" and not placement.sync:
        raise StartupError("--verify rejection is for --draft-mode sync: other drafts would bias it")


def _remark_without(settings: UpSettings) -> str:
    """Return a remark that names what drafts if no bundled draft model has the target's vocabulary."""
    has_own = settings.mtp == "auto" and has_block(settings.model)
    drafting = ["the model's own prediction block"] * has_own + ["lookups in what was said"] * settings.lookup
    who = " and ".join(drafting) or "nobody"
    return f"{who}; --draft-model FILE adds a draft model of the same family"


def _remark_on_cores(settings: UpSettings, machine: Machine, elsewhere: str | None) -> str:
    """Return a remark on where the draft model runs on a machine with few cores.

    elsewhere: URL of the embedded Redis for other machines, if any.
    """
    cores = f"{machine.n_cores} core{'s' if machine.n_cores > 1 else ''}"
    advice = "" if settings.redis or elsewhere else "; --redis-listen 0.0.0.0 lets another machine draft, too"
    return f"{cores}: the draft model runs inside the lead{advice}"


def _reach_of(url: str) -> str:
    """Return, in words, which machines can join at this URL of Redis."""
    try:
        return HERE if ip_address(urlsplit(url).hostname or "").is_loopback else ELSEWHERE
    except ValueError:  # a host name, not a numeric address
        return ELSEWHERE


def _open_redis(stack: ExitStack, settings: UpSettings) -> tuple[str, str | None]:
    """Return the URL of Redis, and the URL with a password for drafters on other machines, or None.

    Raises StartupError.
    """
    if settings.redis:
        if settings.redis_listen:
            raise StartupError("--redis-listen is for the embedded Redis: leave out --redis")
        from server.speculation.wire.redis_client import check

        check(settings.redis, settings.pool)
        return settings.redis, None
    server = stack.enter_context(EmbeddedServer(listen=settings.redis_listen))
    return server.url, server.url_elsewhere


def _for_drafters(settings: UpSettings, draft: Path | None) -> Path | None:
    """Return the --model in the printed join commands; None if the drafters' default is right.

    Only the lead can draft with a head or an assistant. A bundled draft model is given by its name.
    """
    if head_of(settings) or assistant_of(settings) or draft in (None, SMOLLM2_DRAFT, SMOLLM2_SMALL):
        return None
    return Path(draft.name) if draft in DRAFTS else draft.absolute()


def _site_with_joins(
    settings: UpSettings, site: Site, draft: Path | None, url: str, elsewhere: str | None
) -> Site:
    """Return the site with commands by which further drafters join.

    Args:
        settings: The settings.
        site: The site, without these commands.
        draft: The draft model on this machine, if any.
        url: URL of Redis for drafters on this machine.
        elsewhere: URL for drafters on other machines; None: no such URL is known.
    """
    model, program = _for_drafters(settings, draft), _program_name()
    told = without_password(url)  # this line is logged
    site = replace(site, join=_join_command(settings, told, model, program))
    if elsewhere is None:
        return replace(site, reach=HERE if url.startswith("unix:") else "")
    if (reach := _reach_of(elsewhere)) == ELSEWHERE:
        program, model = _program_elsewhere(program), model and Path(model.name)
    return replace(site, join_elsewhere=_join_command(settings, elsewhere, model, program), reach=reach)


def _join_command(settings: UpSettings, url: str, model: Path | None, program: str = "duo") -> str:
    pool = ["--pool", settings.pool] if settings.pool != "default" else []
    flags = ["--model", str(model)] if model else []
    return shlex.join([program, "draft", "--redis", url, *pool, *flags])


def _program_name() -> str:
    """Return the command for duo in a terminal: its name if that is on PATH, else its full path."""
    beside = Path(sys.executable).with_name("duo")
    return str(beside) if beside.is_file() and shutil.which("duo") is None else "duo"


def _program_elsewhere(program: str) -> str:
    """Return the command for duo on another machine: in .venv/bin if this machine's `program` is there."""
    return ".venv/bin/duo" if program.endswith("/.venv/bin/duo") else "duo"


def _model_size(model: Path) -> int:
    """Return the bytes of all parts of a model's file. Raises StartupError."""
    return sum(part.stat().st_size for part in parts(model))


def _start_drafter(settings: UpSettings, placement: Placement, draft: Path, url: str, i: int) -> Child:
    name, gpus = f"drafter-{i + 1}", placement.draft_gpus
    flags = [
        "--pool",
        settings.pool,
        "--threads",
        str(placement.threads),
        "--model",
        str(draft),
    ]
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
