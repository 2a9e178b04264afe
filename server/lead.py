"""The lead process, put together: model, bus, engine, HTTP. Start-up reads from top to bottom."""

from __future__ import annotations

import logging
import os
import platform
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import uvicorn
import uvloop
from rich.console import Console

from server.api.served import DrafterHealth, ExactnessHealth, GateHealth, Health, ModelCard, Served
from server.api.traffic import Traffic
from server.app import create_app
from server.cache.named import NamedFiles
from server.cache.snapshots import Snapshots
from server.calibration import remembered, steady_widths
from server.console import log_to
from server.engine.engine import Engine
from server.engine.scheduler import Limits
from server.engine.thread import EngineThread, Observer
from server.errors import StartupError
from server.flags import n_cores
from server.llama.backend import Vocabulary
from server.llama.llamacpp import LlamaBackend, LlamaOptions, default_cells
from server.recollection import of_model, recall
from server.reply_printer import ReplyPrinter
from server.sampling.constraint import Constraint
from server.settings import LeadSettings
from server.speculation.costs import StepCosts
from server.speculation.draft_model import DraftModel
from server.speculation.policy import Policy
from server.speculation.presence import Presence, misfit, vocabulary_card
from server.speculation.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.streams import RedisBus, check
from server.speculation.widths import Widths
from server.text.template import ChatTemplate
from server.tiers import MIB, fingerprint, open_snapshots

logger = logging.getLogger("duo.lead")

MAX_SEQS = 256  # of llama.cpp
AHEAD = 2  # drafters draft up to this many times draft_max past the committed tokens
GIL_SWITCH_S = 0.0005  # how long the HTTP loop may keep the engine thread waiting after a decode
RECALLED = 64  # conversations on disk whose exact tokens are known from the start
GRACE_S = 5  # for running replies when the server is asked to stop


@dataclass(frozen=True, slots=True)
class Site:
    """Where a lead runs: its listening socket, the Redis of its drafters if any, CPU threads of the model,
    and the draft model to run beside it, if it shall draft synchronously."""

    listener: socket.socket
    redis_url: str | None
    n_threads: int
    draft_model: Path | None = None


def serve(settings: LeadSettings) -> int:
    """duo serve: a lead, alone or with the drafters of --redis. Raises StartupError."""
    with closing(open_socket(settings.host, settings.port)) as listener:
        if settings.redis:
            check(settings.redis)
        sync = settings.draft_mode == "sync" or (settings.draft_mode == "auto" and not settings.redis)
        draft = settings.draft_model if sync else None
        if settings.draft_mode == "sync" and draft is None:
            raise StartupError("--draft-mode sync needs a draft model: give a GGUF file with --draft-model")
        if settings.verify == "rejection" and draft is None:
            raise StartupError("--verify rejection is for --draft-mode sync: other drafts would bias it")
        return run_lead(settings, Site(listener, settings.redis, settings.threads or n_cores(), draft))


def open_socket(host: str, port: int) -> socket.socket:
    """The listening socket, before anything slow. Raises StartupError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise StartupError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another address with --host or --port"
        ) from error
    return listener


def run_lead(settings: LeadSettings, site: Site) -> int:
    """Load the model, serve until stopped, and leave nothing behind. Returns the exit status."""
    console = Console(highlight=False)
    log_to(console)
    sys.setswitchinterval(GIL_SWITCH_S)
    signal.signal(signal.SIGTERM, _leave)
    with ExitStack() as stack:
        logger.info("duo %s: loading %s", version("duo"), settings.model)
        began = time.perf_counter()
        backend = stack.enter_context(closing(_load(settings, site.n_threads)))
        logger.info(
            "  model    %s in %.1f s", _describe(backend, site.n_threads), time.perf_counter() - began
        )
        proposer = _speculator(stack, settings, site, backend)
        snapshots = open_snapshots(settings, backend, lambda: engine.command(lambda _: None))
        if snapshots is not None:
            stack.callback(snapshots.close)
        traffic = Traffic()
        observers = [*_observers(settings, console, backend), traffic]
        engine = EngineThread(
            _engine_maker(settings, backend, proposer, snapshots),
            n_ctx=backend.n_ctx,
            observers=observers,
            max_queued=settings.max_queued,
            profile=settings.profile,
        )
        _announce(site)
        served = replace(_served(settings, site, backend, engine, proposer), traffic=traffic)
        if snapshots is not None:
            served = replace(served, cached=snapshots.counters)
            served.history.recall(snapshots.conversations(most=RECALLED))
        uvloop.run(_serve_http(engine, served, site.listener))
    logger.info("duo has ended")
    return 0


async def _serve_http(engine: EngineThread, served: Served, listener: socket.socket) -> None:
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(served),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
    )
    engine.start()
    try:
        await server.serve(sockets=[listener])
    finally:
        await engine.stop()


def _load(settings: LeadSettings, n_threads: int) -> LlamaBackend:
    """The target model with room for all slots. Raises StartupError."""
    return LlamaBackend(
        LlamaOptions(
            model_path=settings.model,
            n_cells=settings.ctx_size or default_cells(settings.model, settings.parallel),
            n_seqs=_n_places(settings) * _leaves(settings),  # see docs/adr/0003
            n_threads=n_threads,
            n_gpu_layers=settings.gpu_layers,
        )
    )


def _speculator(stack: ExitStack, settings: LeadSettings, site: Site, backend: LlamaBackend) -> Speculator:
    """Whatever guesses for this lead: a draft model beside, drafters on the bus, and lookups."""
    inline = None
    if site.draft_model is not None:
        inline = _draft_model(stack, settings, site.draft_model, backend)
    remote = _join_bus(stack, settings, site, backend) if site.redis_url else None
    if inline is None and remote is None:
        logger.info("  drafters none: no --redis was given, and no --draft-model")
    policy = Policy(
        max_rows=settings.parallel + 2 * settings.draft_max,
        leaves=_leaves(settings) if backend.can_trim else 1,
        lookup=settings.lookup and settings.verify == "exact",
        gate=settings.gate,
        waits=settings.wait,
        by_rejection=settings.verify == "rejection",
    )
    known: dict[int, float] = {}
    steady: dict[int, float] = {}
    if settings.draft_max:
        what = of_model(settings.model, site.n_threads, settings.gpu_layers)
        # On a thread of its own, which ends: OpenMP's threads belong to the one that decodes, and as long as
        # there are more of them than cores, those of the engine would sleep at every barrier.
        with ThreadPoolExecutor(1) as aside:
            known = aside.submit(remembered, backend, policy.max_rows, what).result()
            steady = aside.submit(steady_widths, backend, settings.draft_max + 1, policy.max_rows).result()
    costs = StepCosts(policy.max_rows, known)
    return Speculator(policy, remote=remote, inline=inline, costs=costs, widths=Widths(steady))


def _draft_model(
    stack: ExitStack, settings: LeadSettings, path: Path, target: LlamaBackend
) -> DraftModel | None:
    """The model that drafts between steps; None if the bundled one, which nobody asked for, does not fit.
    Raises StartupError if another one does not."""
    draft = LlamaBackend(
        LlamaOptions(
            model_path=path,
            n_cells=default_cells(path, settings.parallel),
            n_seqs=settings.parallel,
            n_threads=settings.draft_threads or n_cores(),
            n_gpu_layers=settings.gpu_layers,
        )
    )
    stack.enter_context(closing(draft))
    if reason := misfit(vocabulary_card(target.vocab), vocabulary_card(draft.vocab)):
        if settings.draft_model is None:
            logger.info("  draft    none: the bundled draft model does not fit (%s)", reason)
            return None
        raise StartupError(f"{path} cannot draft for {settings.model}: {reason}")
    logger.info("  draft    %s (%s), in this process", draft.name, draft.description)
    return DraftModel(draft, distributions=settings.verify == "rejection")


def _join_bus(stack: ExitStack, settings: LeadSettings, site: Site, backend: LlamaBackend) -> RemoteDrafters:
    id = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"
    card = vocabulary_card(backend.vocab)
    own = Presence(id, "lead", settings.name, version("duo"), card, settings.parallel)
    bus = stack.enter_context(closing(RedisBus(str(site.redis_url), settings.pool, own)))
    remote = RemoteDrafters(bus, own, max_ahead=AHEAD * settings.draft_max)
    bus.start(remote)
    return remote


def _leaves(settings: LeadSettings) -> int:
    """Of one session's tree, each of which needs a sequence."""
    return max(1, min(settings.leaves, MAX_SEQS // _n_places(settings)))


def _n_places(settings: LeadSettings) -> int:
    """Conversations in the KV cache: more than run at once, so that a side request evicts none."""
    return settings.parallel + max(1, settings.parallel // 2)


def _engine_maker(
    settings: LeadSettings, backend: LlamaBackend, proposer: Speculator, snapshots: Snapshots | None
) -> Callable[[Observer], Engine]:
    limits = Limits(
        n_batch=backend.n_batch,
        draft_max=settings.draft_max,
        leaves=_leaves(settings),
        stable_width=settings.stable_width,
        exactness=settings.exactness,
        by_rejection=settings.verify == "rejection",
    )

    def make(emit: Observer) -> Engine:
        engine = Engine(backend, proposer, emit, n_slots=settings.parallel, limits=limits)
        if snapshots is not None:
            engine.save_to(snapshots)
        return engine

    return make


def _observers(settings: LeadSettings, console: Console, backend: LlamaBackend) -> list[Observer]:
    if settings.print == "none":
        return []
    return [ReplyPrinter(console, backend.vocab, show_rejected=settings.print == "all")]


def _describe(backend: LlamaBackend, n_threads: int) -> str:
    return (
        f"{backend.name} ({backend.description}, {backend.n_params / 1e6:.1f}M parameters, "
        f"context {backend.n_ctx}, {n_threads} threads)"
    )


def _served(
    settings: LeadSettings, site: Site, backend: LlamaBackend, engine: EngineThread, proposer: Speculator
) -> Served:
    vocabulary = backend.vocab
    template = ChatTemplate(
        backend.chat_template,
        bos=_special(vocabulary, vocabulary.bos),
        eos=_special(vocabulary, vocabulary.eos),
    )
    card = ModelCard(
        settings.name, int(time.time()), backend.n_ctx, backend.n_params, backend.description, settings.note
    )

    probed = recall("probe", of_model(settings.model, site.n_threads, settings.gpu_layers))
    exactness = ExactnessHealth(settings.exactness, settings.stable_width, probed)

    def health() -> Health:
        return Health(
            status="stuck" if engine.stuck() else "ok",
            slots_total=settings.parallel,
            slots_busy=engine.engine.n_active,
            queued=engine.engine.n_waiting,
            step_python_us=engine.engine.step_overhead_us(),
            drafters=_drafters(proposer),
            exactness=exactness,
            draft_mode="async" if site.draft_model is None else "sync",
            gate=GateHealth(
                proposer.pace.rate,
                {rows: seconds * 1e3 for rows, seconds in proposer.costs.table().items()},
                proposer.widths.best,
                {rows: seconds * 1e3 for rows, seconds in proposer.widths.steady.items()},
            ),
        )

    return Served(
        engine,
        vocabulary,
        template,
        card,
        settings.sampling,
        health,
        f"duo-{version('duo')}",
        grammars=partial(_compile_gbnf, vocabulary),
        command=engine.command,
        slot_files=_slot_files(settings, backend),
    )


def _slot_files(settings: LeadSettings, backend: LlamaBackend) -> NamedFiles | None:
    if settings.cache_dir is None:
        return None
    return NamedFiles(
        settings.cache_dir / "slots",
        budget_bytes=settings.cache_disk << MIB,
        fingerprint=fingerprint(settings.model, backend.state_format),
    )


def _compile_gbnf(vocabulary: Vocabulary, text: str) -> Callable[[], Constraint]:
    from server.grammar.constraint import compile_gbnf  # llguidance loads when somebody needs it

    return compile_gbnf(vocabulary, text)


def _drafters(proposer: Speculator) -> list[DrafterHealth]:
    return [
        DrafterHealth(
            record.presence.id,
            record.presence.model,
            "refused" if record.refusal else "accepted",
            record.refusal,
            dict(record.counts),
        )
        for record in proposer.drafters()
    ]


def _special(vocabulary: Vocabulary, token: int | None) -> str:
    return "" if token is None else vocabulary.piece(token, special=True).decode(errors="replace")


def _announce(site: Site) -> None:
    host, port = site.listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    logger.info("  page     %s", url)
    logger.info("  API      %s/v1", url)


def _leave(*_: object) -> None:
    raise SystemExit(0)
