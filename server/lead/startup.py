"""Put the lead process together: models, bus, engine, HTTP. Start-up reads from top to bottom."""

from __future__ import annotations

import asyncio
import gc
import logging
import platform
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import uvloop

from server.api.app import create_app, create_waiting_app
from server.api.services import Health, Services
from server.api.traffic import Traffic
from server.cache.snapshots import Snapshots
from server.engine.engine import Engine
from server.engine.proposer import Proposer
from server.engine.scheduler import Limits
from server.engine.thread import Bounds, EngineThread, Observer
from server.errors import LostModelError
from server.grammar.compiler import prepare
from server.lead.attention import AttentionChoice
from server.lead.beginning import LoadedModels, Loading, console_of
from server.lead.browser_drafters import lending_of
from server.lead.calibration import (
    first_times,
    on_own_thread,
    remembered,
    remembered_in_small_context,
    steady_widths,
)
from server.lead.idle_measuring import IdleMeasuring
from server.lead.listening import ClientPolicy, DrainingServer, answering, client_policy_of, configured
from server.lead.loading import (
    leaves_of,
    warm_up,
)
from server.lead.recollection import keep, of_model, recall
from server.lead.serving import embedding_by, lead_group_of, services_of, store_of
from server.lead.site import Site, announce
from server.lead.tiers import open_snapshots, pace_of, save_copies
from server.lead.vocabularies import card_of
from server.llama.backend import Backend, RowsCard
from server.llama.context import LlamaContext
from server.llama.lenders import watch
from server.llama.llamacpp import LlamaBackend
from server.llama.options import LlamaOptions
from server.llama.shapes import UNKNOWN
from server.llama.target_rows import given_layers, row_source, width_of
from server.llama.with_rows import WithRows
from server.pictures.fetching import RemotePictures
from server.settings import LeadSettings
from server.speculation.policy import Policy
from server.speculation.shape_times import ShapeTimes
from server.speculation.sources.remote import RemoteDrafters
from server.speculation.speculator import Speculator
from server.speculation.step_times import StepTimes
from server.speculation.wire.presence import Presence, unique_id
from server.speculation.wire.streams import RedisBus
from server.stop_signals import leave_if_requested, take_over
from server.terminal.reply_printer import ReplyPrinter

logger = logging.getLogger("duo.lead")

# Maximum tokens that drafters draft beyond the committed ones. A draft model makes 4 to 16 in the time of a
# step; further ones are wasted at the next wrong guess. If halved, a step may commit all available guesses.
AHEAD = 32
GUESSED = 64  # rows of a step for guesses of all sessions: as many as --draft-max allows one session
GIL_SWITCH_S = 0.0005  # seconds that the HTTP loop may keep the engine's thread waiting after a decode
RECALLED = 64  # number of conversations on disk whose exact tokens are known from the start


def serve_models(settings: LeadSettings, site: Site, loading: Loading) -> int:
    """Serve the models of `loading` until asked to stop, and return the exit status."""
    policy = client_policy_of(settings, site.listener.getsockname()[0])
    sys.setswitchinterval(GIL_SWITCH_S)
    with ExitStack() as stack:
        waiting = create_waiting_app(Health("loading", settings.parallel, 0, 0, 0.0), policy.edge)
        with answering(site.listener, waiting, policy.tls):
            models = loading.models()
            backend, model = models.target, _with_rows(site, models)
            proposer = _make_speculator(stack, settings, site, models, model)
        snapshots = open_snapshots(settings, backend, lambda: engine.command(lambda _: None))
        if snapshots is not None:
            stack.callback(snapshots.close)
        observers: list[Observer] = [traffic := Traffic()]
        if settings.print != "none":
            show_rejected = settings.print == "all"
            observers.append(ReplyPrinter(console_of(settings), backend.vocab, show_rejected=show_rejected))
        engine = EngineThread(
            _engine_maker(settings, backend.options, model, proposer, snapshots, loading.attention),
            n_ctx=backend.n_ctx,
            observers=observers,
            max_queued=settings.max_queued,
            bounds=_bounds_of(settings),
            profile=settings.profile,
        )
        proposer.overlap(partial(engine.hand_over, guessing=True))
        measuring = _idle_work(settings, backend, loading.attention, engine, proposer.ledger.times)
        stack.callback(measuring.close)
        engine.command(lambda _: warm_up(model, models.inline))
        announce(site, policy)
        mode = "sync" if site.draft_model else "async"
        services = services_of(settings, backend, engine, proposer, mode)
        services = replace(services, traffic=traffic, pictures=models.pictures)
        services = _with_remote(stack, services, settings)
        beside = (models.embedder, models.ranker)
        embedding, reranking = (embedding_by(loading.owned, one, services.model) for one in beside)
        replies = store_of(settings, services.background, lead_group_of(settings, backend))
        services = replace(services, embedding=embedding, reranking=reranking, replies=replies)
        services = replace(services, lending=lending_of(site, settings.pool))
        services = _with_snapshots(services, snapshots, policy)
        _until_ended(loading, _serve_http(engine, services, site.listener, policy, measuring))
    logger.info("duo has ended")
    leave_if_requested()
    return 0


def _with_remote(stack: ExitStack, services: Services, settings: LeadSettings) -> Services:
    """Return `services`, with a fetcher of remote pictures if the settings allow it; the stack closes it."""
    if services.pictures is None or not settings.allow_remote_images:
        return services
    return replace(services, remote=stack.enter_context(closing(RemotePictures())))


def _bounds_of(settings: LeadSettings) -> Bounds:
    most, seconds, silent_s = settings.max_tokens, settings.request_timeout, settings.watchdog
    return Bounds(most or None, seconds or None, silent_s or None)


def _until_ended(loading: Loading, serving: Coroutine[None, None, None]) -> None:
    try:
        uvloop.run(serving)
    except LostModelError:
        loading.abandon()
        raise


def _with_snapshots(services: Services, snapshots: Snapshots | None, policy: ClientPolicy) -> Services:
    """Return `services` with the counters of snapshots for /metrics; unchanged without snapshots.

    Also give `services.history` the exact tokens of each API key's conversations on disk, now and whenever
    another lead writes one.
    """
    if snapshots is None:
        return services
    services = replace(services, cached=snapshots.counters)
    for salt in (caller.salt() for caller in policy.edge.access.callers):
        services.history.recall(snapshots.conversations(salt, most=RECALLED), salt)
        snapshots.hear(salt, partial(services.history.recall, salt=salt))
    return services


async def _serve_http(
    engine: EngineThread,
    services: Services,
    listener: socket.socket,
    policy: ClientPolicy,
    measuring: IdleMeasuring,
) -> None:
    app = create_app(services, policy.edge)
    hand_over = partial(services.background.hand_over, services.replies)
    config = configured(app, policy.tls, policy.bounds)
    server = DrainingServer(config, engine, grace_s=policy.grace_s, hand_over=hand_over)
    loop = asyncio.get_running_loop()
    keep_for_good()
    take_over(server.end)  # the engine's thread must be ended before the model is freed
    try:
        try:
            engine.start()
            measuring.start()
            with watch.reporting(lambda error: loop.call_soon_threadsafe(server.fail, error) and None):
                await server.serve(sockets=[listener])
        finally:
            if server.failure is not None:
                raise server.failure
            await engine.stop()
    except LostModelError:
        await asyncio.to_thread(save_copies, engine)
        raise


def keep_for_good() -> None:
    """Enable garbage collection, but exclude all objects that exist now.

    Scanning them takes up to 0.1 s, during which neither the event loop nor the engine runs. Garbage among
    them, a few hundred objects from imports, is never freed.
    """
    gc.freeze()
    gc.enable()


def _with_rows(site: Site, models: LoadedModels) -> Backend:
    """Return the model, wrapped to send hidden rows to heads that may join on the bus.

    The model is not wrapped if there is no bus, or if it reads pictures.
    """
    if not site.redis_url or models.pictures is not None:
        return models.model
    return WithRows(models.model, partial(row_source, models.target))


def _make_speculator(
    stack: ExitStack, settings: LeadSettings, site: Site, models: LoadedModels, model: Backend
) -> Speculator:
    """Return the proposer of guesses by all sources: a model in this process, drafters, and lookups."""
    backend, inline = models.target, models.inline
    rows = model if isinstance(model, WithRows) else None
    remote = _join_bus(stack, settings, site, backend, rows) if site.redis_url else None
    if inline is None and remote is None:
        logger.info("  drafters none: no --redis was given, and no --draft-model")
    most = settings.parallel + GUESSED
    policy = Policy(
        max_rows=most,
        leaves=leaves_of(settings, backend),
        lookup=settings.lookup and settings.verify == "exact" and settings.draft_max > 0,
        gate=settings.gate or not settings.draft_max,
        by_rejection=settings.verify == "rejection",
        again=not backend.can_trim,
        n_tail=backend.n_tail,
        overlaps=backend.overlaps,
    )
    n_timed = _n_timed(settings, backend)
    known: dict[int, float] = {}
    shapes = UNKNOWN
    if n_timed:
        times = remembered if backend.overlaps else first_times  # idle time measures the rest
        known = on_own_thread(times, backend, n_timed, of_model(backend.options))
    if settings.draft_max:
        shapes = on_own_thread(steady_widths, backend, most, backend.keys is not None)
    times = StepTimes(policy.max_rows, known, ShapeTimes(shapes.steady, shapes.change_s))
    proposer = Speculator(policy, remote=remote, inline=inline, times=times)
    if policy.gate:
        what, ledger = (of_model(backend.options), site.n_threads, str(site.draft_model)), proposer.ledger
        ledger.recall(recall("credits", what))
        stack.callback(lambda: keep("credits", what, ledger.memory()))
    return proposer


def _n_timed(settings: LeadSettings, backend: LlamaBackend) -> int:
    """Return the rows of the widest step to time at the start, 0 if no step has to be timed."""
    if settings.draft_max:
        return settings.parallel + GUESSED
    if settings.parallel > 2 and not backend.overlaps:  # two rows never take longer than three
        return 2 * settings.parallel
    return 0


def _idle_work(
    settings: LeadSettings,
    backend: LlamaBackend,
    attention: AttentionChoice,
    engine: EngineThread,
    known: StepTimes,
) -> IdleMeasuring:
    """Return the work for idle times: measuring on a CPU, which corrects `known`, and preparing grammars.

    On a GPU, everything was measured before the start.
    """
    n_timed, what = _n_timed(settings, backend), of_model(backend.options)

    def time_steps(make: Callable[[], LlamaContext]) -> None:
        if times := remembered_in_small_context(backend, n_timed, what, make):
            known.calibrate(times)

    def time_attention(make: Callable[[], LlamaContext]) -> None:
        attention.measure_again(backend.model, backend.options, make)

    measurements = [time_steps] * bool(n_timed) + [time_attention] * attention.was_asked
    rest = [lambda: prepare(backend.vocab)]
    return IdleMeasuring(engine, [] if backend.overlaps else measurements, rest)


def _join_bus(
    stack: ExitStack, settings: LeadSettings, site: Site, backend: LlamaBackend, rows: WithRows | None
) -> RemoteDrafters:
    card = card_of(settings.model, settings.weights)
    own = Presence(unique_id(platform.node()), "lead", settings.name, version("duo"), card, settings.parallel)
    if rows is not None and (layers := given_layers(backend)):
        own = replace(own, rows=RowsCard(width_of(backend), layers))
    bus = stack.enter_context(closing(RedisBus(str(site.redis_url), settings.pool, own)))
    most = min(AHEAD, 2 * settings.draft_max)
    remote = RemoteDrafters(bus, own, max_ahead=most, overlaps=backend.overlaps, target=rows)
    bus.start(remote)
    return remote


def _engine_maker(
    settings: LeadSettings,
    options: LlamaOptions,
    model: Backend,
    proposer: Proposer,
    snapshots: Snapshots | None,
    attention: AttentionChoice,
) -> Callable[[Observer], Engine]:
    limits = Limits(
        n_batch=model.n_batch,
        draft_max=settings.draft_max,
        leaves=leaves_of(settings, model),
        stable_width=settings.stable_width,
        exactness=settings.exactness,
        by_rejection=settings.verify == "rejection",
    )

    def make(emit: Observer) -> Engine:
        engine = Engine(model, proposer, emit, n_slots=settings.parallel, limits=limits)
        engine.meter.kinds = attention.kinds
        if snapshots is not None:
            engine.residence.save_to(snapshots, *pace_of(options))
        return engine

    return make
