"""A lead over the toy model in a process of its own, which measures its event loop.

The toy's replies are as long as max_tokens. The tokens of one step, one of each stream, are handed to the
event loop together.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import uvloop

from server.api.app import create_app
from server.api.middleware import Edge
from server.api.served import Health, ModelCard, Served
from server.api.traffic import Traffic
from server.engine.account import CURRENT
from server.engine.engine import Engine
from server.engine.events import Committed, Event, Finished
from server.engine.proposer import NoProposer
from server.engine.request import GenerationRequest
from server.engine.scheduler import Limits
from server.engine.thread import EngineThread, LiveGeneration, Observer
from server.errors import StartupError
from server.grammar.compiler import Compiler
from server.lead.listening import Door, DrainingServer, configured
from server.lead.startup import GIL_SWITCH_S
from server.llama.backend import Batch, Logits
from server.sampling.params import SamplingParams
from server.text.guard import controls_of
from server.text.template import ChatTemplate
from tests.fake_backend import FakeBackend, FakeModel

WARM = 8  # tokens of a stream before it counts as running
N_CTX = 4096


Mark: TypeAlias = tuple[float, int, float, float]
"""time.monotonic(); so far tokens, CPU seconds of the event loop's thread, and of these the kernel's."""


@dataclass(frozen=True, slots=True)
class Told:
    """One round. marks: the beginning and the end of the time in which all streams ran, if there was one.
    emitted: when the engine had each token, by the id of its request."""

    marks: list[Mark]
    emitted: dict[str, list[float]]


class LoopThread:
    """CPU time of the thread that makes it, for other threads."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._stat = Path(f"/proc/self/task/{threading.get_native_id()}/stat")

    def cpu_s(self) -> float:
        return time.clock_gettime(self._clock)

    def kernel_s(self) -> float:
        """In steps of 0.01 s: field 15 of stat, in ticks."""
        return int(self._stat.read_text().rpartition(")")[2].split()[12]) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Recorder:
    """Observes events on the engine's thread, so that the event loop has no work from it."""

    n_streams: int
    loop: LoopThread
    names: dict[int, str] = field(default_factory=dict[int, str])
    emitted: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    n_running: int = 0
    n_tokens: int = 0
    marks: list[Mark] = field(default_factory=list[Mark])

    def __call__(self, id: int, event: Event) -> None:
        if isinstance(event, Committed):
            times = self.emitted.setdefault(id, [])
            times += [time.monotonic()] * len(event.tokens)
            self.n_tokens += len(event.tokens)
            if len(times) == WARM:
                self.n_running += 1
                if self.n_running == self.n_streams:
                    self.marks.append(self._now())
        elif isinstance(event, Finished) and len(self.marks) == 1:
            self.marks.append(self._now())

    def _now(self) -> Mark:
        return time.monotonic(), self.n_tokens, self.loop.cpu_s(), self.loop.kernel_s()

    def take(self) -> Told:
        """The round that has ended, which is forgotten."""
        told = Told(self.marks, {self.names[id]: times for id, times in self.emitted.items()})
        self.names.clear()
        self.emitted.clear()
        self.n_running, self.marks = 0, []
        return told


class LateGpu(FakeBackend):
    """A GPU whose decodes are under way only when they are nearly over, as those of many rows."""

    def decode(self, batch: Batch) -> Logits:
        meanwhile, batch.meanwhile = batch.meanwhile, None
        logits = FakeBackend.decode(self, batch)
        if meanwhile is not None:
            meanwhile()
        return logits


class NamingThread(EngineThread):
    """Remembers the request of each generation."""

    names: dict[int, str]

    def submit(self, request: GenerationRequest) -> LiveGeneration:
        generation = super().submit(request)
        account = CURRENT.get()
        self.names[generation.id] = account.id if account else ""
        return generation


class Lead:
    """The lead, in the process that measures."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until it listens. Raises StartupError if it ends before that."""
        self._process = process
        self.port: int = self._said()

    def told(self) -> Told:
        """The streams since the last call, all of which have ended."""
        assert self._process.stdin
        self._process.stdin.write(b"take\n")
        self._process.stdin.flush()
        return Told(**self._said())

    def _said(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise StartupError("the lead has ended: its last words are above")
        return orjson.loads(line)


@contextmanager
def lead(
    n_streams: int, step_s: float, checkout: Path | None = None, *, gpu: bool = False
) -> Generator[Lead]:
    """Start it for rounds of n_streams. step_s: added to each decode. checkout: another checkout of duo, to
    measure its server. gpu: as LateGpu. Raises StartupError."""
    command = [sys.executable, "-m", "benchmarks.http_lead", str(n_streams), str(step_s), *["gpu"] * gpu]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=checkout) as process:
        yield Lead(process)  # and close its standard input, which ends it


# -- in the process ----------------------------------------


async def _serve(n_streams: int, step_s: float, gpu: bool) -> None:
    recorder = Recorder(n_streams, LoopThread())
    backend = (LateGpu if gpu else FakeBackend)(
        FakeModel(eog_rate=0.0),
        n_cells=N_CTX * (n_streams + 1),
        n_ctx=N_CTX,
        n_seqs=2 * n_streams + 2,
        n_batch=max(64, 2 * n_streams),
        step_s=step_s,
        overlaps=gpu,
    )
    traffic = Traffic()

    def engine(emit: Observer) -> Engine:
        def recorded(id: int, event: Event) -> None:
            recorder(id, event)
            emit(id, event)

        limits = Limits(n_batch=backend.n_batch, draft_max=0)
        return Engine(backend, NoProposer(), recorded, n_slots=n_streams, limits=limits)

    thread = NamingThread(engine, n_ctx=N_CTX, max_queued=2 * n_streams, observers=[traffic])
    thread.names = recorder.names
    served = Served(
        thread,
        backend.vocab,
        ChatTemplate(None, controls=controls_of(backend.vocab)),
        ModelCard("toy", 1, N_CTX, 1000, "a toy"),
        SamplingParams(0.0),
        lambda: Health("ok", n_streams, thread.engine.n_active, 0, 0.0),
        "fp",
        grammars=Compiler(backend.vocab),
        traffic=traffic,
        ask=thread.ask,
        frame_s=thread.gather_s,
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=4 * n_streams)
    door = Door(Edge(), None, grace_s=0)
    server = DrainingServer(configured(create_app(served, door.edge), None), thread, grace_s=0)
    thread.start()
    port: int = listener.getsockname()[1]
    threading.Thread(target=_answer, args=(port, recorder, server), daemon=True).start()
    await server.serve(sockets=[listener])
    await thread.stop()


def _answer(port: int, recorder: Recorder, server: DrainingServer) -> None:
    """Answer the process that measures until it closes our standard input."""
    _say(port)
    for _ in sys.stdin:
        _say(recorder.take())
    server.should_exit = True


def _say(what: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(what) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.setswitchinterval(GIL_SWITCH_S)
    uvloop.run(_serve(int(sys.argv[1]), float(sys.argv[2]), "gpu" in sys.argv))
