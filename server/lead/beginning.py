"""Start a lead: load its models on a thread while the rest of duo is imported.

This module imports only what loading needs. Importing the rest of duo takes as long as loading a small model.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.metadata import version

from server.errors import StartupError
from server.flags import n_cores
from server.lead.attention import AttentionChoice
from server.lead.listener import open_socket, tls_of
from server.lead.loading import (
    drafting_inside,
    for_browsers,
    load_embedder,
    load_ranker,
    load_target,
    prepared,
)
from server.lead.seeing import load_found_pictures
from server.lead.site import Site
from server.llama.backend import Backend
from server.llama.embedder import LlamaEmbedder
from server.llama.llamacpp import LlamaBackend
from server.pictures.registry import Pictures
from server.pictures.with_pictures import WithPictures
from server.settings import LeadSettings
from server.speculation.sources.inline import InlineModel
from server.stop_signals import raise_when_requested
from server.terminal.console import LogConsole, log_to

logger = logging.getLogger("duo.lead")


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """All models of a lead."""

    target: LlamaBackend
    model: Backend  # the target as the engine uses it, with its prediction block if it has one
    inline: InlineModel | None  # the model that drafts in this process, between steps
    embedder: LlamaEmbedder | None
    ranker: LlamaEmbedder | None
    pictures: Pictures | None = None  # None if the target sees none


class Loading:
    """Loads the models of a lead on a separate thread. Owns them until close()."""

    def __init__(self, settings: LeadSettings, site: Site) -> None:
        """Begin to load.

        Args:
            settings: The lead's settings, as prepared() returns them.
            site: Gives the number of threads and the draft model.
        """
        self.attention = AttentionChoice()
        self.owned = ExitStack()  # closes the models and their users in close()
        self.owned.callback(self.attention.keep)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="duo-loading")
        self._loaded = self._thread.submit(self._load, settings, site)
        # The thread ends once it has loaded, since OpenMP keeps workers for each thread that has decoded.
        # With more workers than cores, those of the engine would sleep at every barrier.
        self._thread.shutdown(wait=False)

    def models(self) -> LoadedModels:
        """Wait until the models are loaded, and return them. Raises what loading raised."""
        return self._loaded.result()

    def abandon(self) -> None:
        """Make close() leave the models open, because freeing them would wait for a device that hangs."""
        self.owned.pop_all()

    def close(self) -> None:
        """Wait for the loading thread, which ends soon after a signal to stop, and free the models."""
        wait([self._loaded])
        self.owned.close()

    def _load(self, settings: LeadSettings, site: Site) -> LoadedModels:
        target = self._load_target(settings, site)
        seen = load_found_pictures(self.owned, settings, target)
        base = seen[1] if seen else target
        model, inline = drafting_inside(self.owned, settings, site.draft_model, target, base)
        pictures = seen[0] if seen else None
        if pictures is not None:
            model = WithPictures(model, pictures)
        embedder, ranker = (load(self.owned, settings, target) for load in (load_embedder, load_ranker))
        return LoadedModels(target, model, inline, embedder, ranker, pictures)

    def _load_target(self, settings: LeadSettings, site: Site) -> LlamaBackend:
        logger.info("duo %s: loading %s", version("duo"), settings.model)
        began = time.perf_counter()
        backend = load_target(settings, site.n_threads, self.attention)
        self.owned.callback(backend.close)
        seconds = time.perf_counter() - began
        about = f"{backend.description}, {backend.n_params / 1e6:.1f}M parameters, context {backend.n_ctx}"
        logger.info("  model    %s (%s, %d threads) in %.1f s", backend.name, about, site.n_threads, seconds)
        return backend


def serve(settings: LeadSettings) -> int:
    """Run duo serve: a lead, alone or with the drafters of --redis. Raises StartupError."""
    console_of(settings)  # shows what is fetched
    raise_when_requested()
    with closing(open_socket(settings.host, settings.port)) as listener:
        if settings.redis:
            from server.speculation.wire.redis_client import check

            check(settings.redis, settings.pool)
        settings = prepared(settings)
        sync = settings.draft_mode == "sync" or (settings.draft_mode == "auto" and not settings.redis)
        draft = settings.draft_model if sync else None
        if settings.draft_mode == "sync" and draft is None:
            raise StartupError("--draft-mode sync needs a draft model: give a GGUF file with --draft-model")
        if settings.verify == "rejection" and draft is None:
            raise StartupError("--verify rejection is for --draft-mode sync: other drafts would bias it")
        lent = for_browsers(settings, settings.draft_model)
        return run_lead(settings, Site(listener, settings.redis, settings.threads or n_cores(), draft, lent))


def run_lead(settings: LeadSettings, site: Site) -> int:
    """Load the models, serve until asked to stop, and free the models. Returns the exit status."""
    console_of(settings)
    raise_when_requested()
    settings.keys()  # reports unusable keys before anything is loaded
    tls_of(settings)
    with closing(Loading(settings, site)) as loading:
        from server.lead.startup import serve_models

        return serve_models(settings, site, loading)


def console_of(settings: LeadSettings) -> LogConsole:
    """Make duo log to a new console from now on, and return it. Raises StartupError for bad flags."""
    console = LogConsole(highlight=False)
    log_to(console, settings.log_format)
    if settings.log_format == "json" and settings.print != "none":
        raise StartupError("--print is for people: give it with --log-format text only")
    return console
