"""The engine on a thread of its own, and the asynchronous face of it: the Generate seam, implemented."""

from __future__ import annotations

import asyncio
import cProfile
import itertools
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from server.engine.engine import Engine
from server.engine.events import Committed, Event, Failed, Finished
from server.engine.request import GenerationRequest
from server.errors import BackendError, BusyError, ContextOverflowError, InvalidRequestError

logger = logging.getLogger("duo.engine")

Observer: TypeAlias = Callable[[int, Event], None]
Command: TypeAlias = Callable[[Engine], None]

IDLE_S = 0.1  # how often an idle engine looks at who joined or left
GATHER_S = 0.005  # tokens go to the event loop this often: each hand-over costs compute time
SAVE_S = 10.0  # for conversations to reach the disk when the server ends
STUCK_S = 60.0  # without a finished step while there is work: not healthy


class LiveGeneration:
    """Implements Generation for one submitted request."""

    def __init__(self, id: int, engine: EngineThread) -> None:
        self.id = id
        self._engine = engine
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, Finished | Failed):
                return

    @property
    def more(self) -> bool:
        return not self._events.empty()

    def cancel(self, keep: int | None = None) -> None:
        self._engine.command(lambda engine: engine.cancel(self.id, keep))

    def deliver(self, event: Event) -> None:
        self._events.put_nowait(event)


class EngineThread:
    """Implements Generator. Create and start it on the event loop that will submit."""

    def __init__(
        self,
        make_engine: Callable[[Observer], Engine],
        *,
        n_ctx: int,
        max_queued: int = 64,
        observers: Sequence[Observer] = (),
        profile: Path | None = None,
    ) -> None:
        """make_engine(emit) is called once, here. Observers see every event, on the event loop, and must
        not raise. max_queued: requests in the engine, running ones included, beyond which Busy is raised.
        profile: where to write what the thread spent its time on, for pstats, once it has ended."""
        self._engine = make_engine(self._emit)
        self._n_ctx = n_ctx
        self._max_queued = max_queued
        self._observers = observers
        self._profile = profile
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._outbox: list[tuple[int, Event]] = []
        self._urgent = False  # whether the outbox holds more than tokens
        self._flushed_at = 0.0
        self._generations: dict[int, LiveGeneration] = {}
        self._ids = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="duo-engine", daemon=True)
        self._progress_at = time.monotonic()

    # -- on the event loop ----------------------------------------

    def start(self) -> None:
        """Start the thread; the running event loop will receive the events."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Cancel what runs and end the thread. Idempotent."""
        for generation in list(self._generations.values()):
            generation.cancel()
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # let the last events be delivered

    def submit(self, request: GenerationRequest) -> LiveGeneration:
        if not request.prompt:
            raise InvalidRequestError("the prompt is empty", param="messages")
        if len(request.prompt) >= self._n_ctx:
            raise ContextOverflowError(len(request.prompt), self._n_ctx)
        self._engine.vet(request)
        if len(self._generations) >= self._max_queued:
            raise BusyError("the server is busy: too many requests are waiting")
        generation = LiveGeneration(next(self._ids), self)
        self._generations[generation.id] = generation
        self.command(lambda engine: engine.submit(generation.id, request))
        return generation

    def command(self, command: Command) -> None:
        """Have the engine thread do this before its next step."""
        self._commands.put(command)

    @property
    def engine(self) -> Engine:
        """For counts that are safe to read from any thread."""
        return self._engine

    def stuck(self) -> bool:
        """Whether there is work and no step finished for STUCK_S, or the thread died."""
        if not self._thread.is_alive():
            return self._loop is not None
        return bool(self._generations) and time.monotonic() - self._progress_at > STUCK_S

    def _deliver(self, events: list[tuple[int, Event]]) -> None:
        for id, event in events:
            for observer in self._observers:
                observer(id, event)
            ended = isinstance(event, Finished | Failed)
            generation = self._generations.pop(id, None) if ended else self._generations.get(id)
            if generation is not None:
                generation.deliver(event)

    # -- on the engine thread ----------------------------------------

    def _emit(self, id: int, event: Event) -> None:
        self._outbox.append((id, event))
        self._urgent = self._urgent or not isinstance(event, Committed)

    def _run(self) -> None:
        if self._profile is None:
            self._work()
            return
        profile = cProfile.Profile()
        profile.runcall(self._work)
        profile.dump_stats(self._profile)

    def _work(self) -> None:
        idle = False
        while self._obey(wait=idle):
            try:
                idle = not self._engine.step()
            except Exception:
                logger.exception("a step of the engine failed")
                self._engine.fail_all(BackendError("the server failed while generating"))
            self._progress_at = now = time.monotonic()
            if self._urgent or now - self._flushed_at >= GATHER_S:
                self._flush(now)
        self._flush(time.monotonic())
        try:
            self._engine.rest(SAVE_S)
        except Exception:
            logger.exception("conversations could not be saved")

    def _obey(self, wait: bool) -> bool:
        """Carry out what was asked; returns False when the thread shall end."""
        try:
            command = self._commands.get(timeout=IDLE_S) if wait else self._commands.get_nowait()
            while command is not None:
                command(self._engine)
                command = self._commands.get_nowait()
        except queue.Empty:
            return True
        return False

    def _flush(self, now: float) -> None:
        """Hand the events since the last time to the loop in one call."""
        if self._outbox and self._loop is not None and not self._loop.is_closed():
            events, self._outbox = self._outbox, []
            self._urgent, self._flushed_at = False, now
            self._loop.call_soon_threadsafe(self._deliver, events)
