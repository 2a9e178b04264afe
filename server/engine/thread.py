"""Run the engine on its own thread, for the event loop: implements generate.py."""

from __future__ import annotations

import asyncio
import cProfile
import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from server.engine.engine import Engine
from server.engine.events import Committed, Event, Failed, Progress, Started
from server.engine.live_generation import ENDS, LiveGeneration
from server.engine.request import GenerationRequest
from server.engine.request_account import place_in, tenant
from server.engine.watchdog import Watchdog
from server.errors import (
    BackendError,
    BusyError,
    ContextOverflowError,
    DuoError,
    InvalidRequestError,
    LostModelError,
)
from server.tenants import Places

logger = logging.getLogger("duo.engine")

Observer: TypeAlias = Callable[[int, Event], None]
Command: TypeAlias = Callable[[Engine], None]
T = TypeVar("T")

IDLE_S = 0.1  # seconds between steps of an idle engine, which notice drafters that joined or left
# Seconds after the last reply until an idle engine copies conversations, and between two such pieces of work.
# A pause lasts at least as long as the latest piece, because a request that comes meanwhile waits for it.
# Half: a client that asks again after 10 ms waits for a copy; twice: 16 conversations are copied in 0.6 s,
# not 0.3.
PAUSE_S = 0.02
MOST_PAUSE_S = 60.0  # maximum seconds between failed steps without a request; the pause doubles each time
# Seconds between hand-overs of tokens to the event loop; the key is True if a GPU decodes. On a CPU the loop
# takes a core from the decode. Rate relative to llama-server's (bundled model, two cores): 0.93 with 5 ms,
# 0.97 with 8, 0.99 with 16, which is a frame of a screen, 1.02 with 32 (section J of benchmarks/RESULTS.md).
# Beside a GPU, twice: with steps of 3.9 ms (8B in Q8_0), tokens are sent two at a time, as was seen at 5 ms
# with steps of 4.7 ms; half: a model of 700 tokens per second sends each token by itself.
GATHER_S = {False: 0.016, True: 0.002}
SAVE_S = 10.0  # maximum seconds to save conversations to disk when the server ends
JOIN_S = 0.5  # maximum seconds to wait for the thread's end before checking it for progress again
QUESTION_TIMEOUT_S = 60.0  # maximum seconds until ask() has its answer


@dataclass(frozen=True, slots=True)
class Bounds:
    """Server-wide limits per generation; None: no limit."""

    max_tokens: int | None = None  # cap, also the default when the request gives none
    time_s: float | None = None  # maximum seconds from submission to the end; a longer generation fails
    step_s: float | None = None  # seconds without a finished step after which the engine is given up


class EngineThread:
    """An engine on its own thread. Implements Generator; create and start it on the loop that submits."""

    def __init__(
        self,
        make_engine: Callable[[Observer], Engine],
        *,
        n_ctx: int,
        max_queued: int = 64,
        bounds: Bounds | None = None,
        observers: Sequence[Observer] = (),
        profile: Path | None = None,
    ) -> None:
        """Prepare the thread.

        Args:
            make_engine: Called once, in this constructor, with the engine's `emit`.
            n_ctx: Length of the context in tokens.
            max_queued: Requests in the engine, running ones included, before submit() raises BusyError.
            bounds: Limits of every generation.
            observers: Called on the event loop with the events of all replies; they must not raise.
            profile: File for the thread's profile (pstats), written when it ends.
        """
        self.engine = make_engine(self._emit_event)  # other threads may only read its counts
        self.engine.before, self.engine.meanwhile = self._before_decode, self._during_decode
        self._overlaps = self.engine.overlaps
        self.gather_s = GATHER_S[self._overlaps]
        self._n_ctx = n_ctx
        self.places = Places(max_queued, at_once=self.engine.n_slots)
        self._bounds = bounds or Bounds()
        self._observers = observers
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._outbox: list[tuple[int, Event]] = []
        self._urgent = False  # True if the outbox holds a beginning, an end, or first tokens
        self._silent: set[int] = set()  # generations that have begun and have no token yet
        self._flushed_at = 0.0
        self._pause_s = PAUSE_S
        self._generations: dict[int, LiveGeneration] = {}
        self._ids = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        run = self._work_loop if profile is None else partial(self._profiled_work, profile)
        self._thread = threading.Thread(target=run, name="duo-engine", daemon=True)
        self.watchdog = Watchdog(self._bounds.step_s)

    # -- on the event loop ----------------------------------------

    def start(self) -> None:
        """Start the thread; the running event loop gets the events."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Cancel all generations and end the thread. Idempotent. Raises LostModelError if it is stuck."""
        self.drain()
        self.cancel_all()
        self._commands.put(None)
        while self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, JOIN_S)
            self.watchdog.check(work=True)
            if lost := self.lost():
                raise lost
        await asyncio.sleep(0)  # let the last events be delivered

    def submit(self, request: GenerationRequest) -> LiveGeneration:
        if not request.prompt:
            raise InvalidRequestError("the prompt is empty", param="messages")
        if len(request.prompt) >= self._n_ctx:
            raise ContextOverflowError(len(request.prompt), self._n_ctx)
        self.engine.vet(request)
        self.places.check_open()
        if request.precompute and len(self._generations) >= self.places.most:
            raise BusyError("the server is busy: too many requests are waiting")
        most = self._bounds.max_tokens
        if most is not None and (request.max_tokens is None or request.max_tokens > most):
            request = replace(request, max_tokens=most)
        request = replace(request, tenant=tenant())
        place = None if request.precompute else place_in(self.places)
        generation = LiveGeneration(next(self._ids), self._cancel_session, place)
        self._generations[generation.id] = generation
        if self._bounds.time_s is not None and not request.precompute:
            generation.expire_in(self._bounds.time_s)
        self.command(lambda _: self._begin_request(generation.id, request))
        return generation

    def _cancel_session(self, id: int, keep: int | None) -> None:
        self.command(lambda engine: engine.cancel(id, keep))

    def command(self, command: Command) -> None:
        """Queue a function that the engine thread calls before its next step."""
        self._commands.put(command)

    async def ask(self, question: Callable[[Engine], T]) -> T:
        """Call `question` on the engine thread between two steps; return its result or raise its error.

        Raises:
            BusyError: There is no answer within QUESTION_TIMEOUT_S. A question that has not begun is dropped.
        """
        answer: Future[T] = Future()

        def command(engine: Engine) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question(engine))
            except Exception as error:
                answer.set_exception(error)

        self.command(command)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), QUESTION_TIMEOUT_S)
        except TimeoutError as error:
            raise BusyError("the engine does not answer: try again later", draining=True) from error

    def drain(self) -> None:
        """Refuse new requests, and cancel those that only precompute. Idempotent."""
        self.places.closed = True
        for generation in self._generations.values():
            if generation.precompute:
                generation.cancel()

    def cancel_all(self) -> None:
        for generation in self._generations.values():
            generation.cancel()

    def abandon(self, error: DuoError) -> None:
        """Fail all generations without the engine's thread, which is stuck. Idempotent."""
        self.drain()
        self._deliver_events([(id, Failed(error)) for id in self._generations])

    @property
    def n_live(self) -> int:
        """Return the number of live generations, except those that only precompute. Safe from any thread."""
        return sum(not generation.precompute for generation in list(self._generations.values()))

    @property
    def is_wanted(self) -> bool:
        """Return True if a generation is live or a command waits. Safe from any thread."""
        return bool(self._generations) or not self._commands.empty()

    def check(self) -> None:
        """Check the thread's progress, which stuck() and lost() report. Call it a few times a second."""
        self.watchdog.check(bool(self._generations))

    def stuck(self) -> str | None:
        """Return a message if there is work but no step has finished for a long time, else None."""
        return self.watchdog.warning

    def lost(self) -> LostModelError | None:
        """Return the error that must end the process if the engine is given up (Bounds.step_s), else None."""
        return LostModelError(str(self.stuck())) if self.watchdog.gives_up else None

    def _deliver_events(self, events: list[tuple[int, Event]]) -> None:
        for id, event in events:
            ended = isinstance(event, ENDS)
            generation = self._generations.pop(id, None) if ended else self._generations.get(id)
            if ended and generation and generation.place:
                generation.place.give_back()
            if generation is None or not generation.precompute:
                for observer in self._observers:
                    observer(id, event)
            if generation is not None:
                generation.deliver(event)

    # -- on the engine thread ----------------------------------------

    def _emit_event(self, id: int, event: Event) -> None:
        self._outbox.append((id, event))
        if not isinstance(event, Committed) or id in self._silent:
            self._urgent = True
            if not isinstance(event, Progress):
                (self._silent.add if isinstance(event, Started) else self._silent.discard)(id)

    def _profiled_work(self, path: Path) -> None:
        profile = cProfile.Profile()
        profile.runcall(self._work_loop)
        profile.dump_stats(path)

    def _work_loop(self) -> None:
        idle, due_at, wait_s = False, 0.0, 0.0
        while self._obey_commands(wait_s):
            self.watchdog.step()
            try:
                was_idle, idle = idle, not self.engine.step()
                if idle:
                    due_at = self._prepare_idle(due_at if was_idle else time.monotonic() + self._pause_s)
                wait_s = min(IDLE_S, max(0.0, due_at - time.monotonic())) if idle else 0.0
            except Exception:
                accounts = [generation.account for generation in list(self._generations.values())]
                ids = ", ".join(sorted({account.id for account in accounts if account is not None}))
                logger.exception("a step of the engine failed, which ends %s", ids or "no request")
                self._carry_out(
                    lambda engine: engine.fail_all(BackendError("the server failed while generating"))
                )
                wait_s = min(max(PAUSE_S, 2 * wait_s), MOST_PAUSE_S)
                self.hand_over()
            if idle or not self._overlaps:  # otherwise during the next decode, which the loop would delay
                self.hand_over()
        self.watchdog.sleep()
        self._urgent = True
        self.hand_over()
        try:
            self.engine.residence.save_all(SAVE_S)
        except Exception:
            logger.exception("conversations could not be saved")

    def _prepare_idle(self, due_at: float) -> float:
        """Do one piece of an idle engine's work if `due_at`, a time of time.monotonic(), has come.

        Returns:
            When the next piece is due, on the same clock; infinity if nothing is left.
        """
        began = time.monotonic()
        if began < due_at:
            return due_at
        if not self.engine.residence.copy_ahead():
            return math.inf
        ended = time.monotonic()
        self._pause_s = max(PAUSE_S, ended - began)
        return ended + self._pause_s

    def _begin_request(self, id: int, request: GenerationRequest) -> None:
        try:
            self.engine.submit(id, request)
        except DuoError as error:
            self._emit_event(id, Failed(error))
        except Exception:
            logger.exception("cannot begin a request")
            self._emit_event(id, Failed(BackendError("the server failed before generating")))

    def _obey_commands(self, wait_s: float) -> bool:
        """Run waiting commands, after waiting up to wait_s for one; return False if the thread has to end."""
        try:
            while wait_s or not self._commands.empty():
                command, wait_s = self._commands.get(timeout=wait_s or None), 0.0
                if command is None:
                    return False
                self._carry_out(command)
        except queue.Empty:
            pass
        return True

    def _carry_out(self, command: Command) -> None:
        """Run a command; log an exception, which must not end the thread."""
        try:
            command(self.engine)
        except Exception:
            logger.exception("a command of the engine failed")

    def _before_decode(self) -> None:
        """Hand over the outbox before a decode of many sessions; _work_loop() has done so on a CPU."""
        if self._overlaps:
            self.hand_over()

    def _during_decode(self) -> None:
        """Deliver events that wait for the event loop, while a GPU decodes."""
        self.hand_over()

    def hand_over(self, *, guessing: bool = False) -> None:
        """Hand all waiting events to the event loop, if one is urgent or the last hand-over is gather_s ago.

        Args:
            guessing: True if a draft model runs next, which the event loop would slow down. If a GPU decodes,
                only urgent events are then handed over.
        """
        now = time.monotonic()
        waits = now - self._flushed_at < self.gather_s or (guessing and self._overlaps)
        if not self._outbox or (waits and not self._urgent):
            return
        if self._loop is not None and not self._loop.is_closed():
            events, self._outbox = self._outbox, []
            urgent, self._urgent, self._flushed_at = self._urgent, False, now
            self._loop.call_soon_threadsafe(self._deliver_events, events)
            if urgent and not self._overlaps:
                time.sleep(0)  # lets the loop begin: once a decode takes all cores, it waits 1 ms
