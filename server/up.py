"""duo up: everything on one machine, from nothing. An embedded Redis, drafters as children, and the lead."""

from __future__ import annotations

from contextlib import ExitStack

from server.children import Child
from server.embedded import EmbeddedServer
from server.errors import StartupError
from server.flags import n_cores
from server.lead import Site, open_socket, run_lead
from server.settings import UpSettings
from server.speculation.streams import check


def up(settings: UpSettings) -> int:
    """Run until stopped; returns the exit status. Raises StartupError."""
    if settings.draft_model and not settings.draft_model.is_file():
        raise StartupError(f"no model file at {settings.draft_model}: give a GGUF file with --draft-model")
    with ExitStack() as stack:
        listener = stack.enter_context(open_socket(settings.host, settings.port))
        url = settings.redis
        if settings.drafters and not url:
            url = stack.enter_context(EmbeddedServer()).url
        elif url:
            check(url)
        for i in range(1, settings.drafters + 1):
            stack.enter_context(_drafter(settings, str(url), f"drafter-{i}"))
        # A small draft model is idle most of the time, so the lead takes all cores; --threads says otherwise.
        return run_lead(settings, Site(listener, url, settings.threads or n_cores()))


def _drafter(settings: UpSettings, url: str, name: str) -> Child:
    flags = ["--redis", url, "--pool", settings.pool, "--name", name]
    flags += ["--threads", str(settings.draft_threads)]
    if settings.draft_model:
        flags += ["--model", str(settings.draft_model)]
    devices = settings.draft_devices
    return Child(name, flags, {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices})
