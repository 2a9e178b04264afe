"""Run duo's own commands in the processes of a live system.

They also answer GET /check and /size, their clock moves by a signal, and they may run a toy model instead of
weights.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson

import drafters.kinds
import server.lead.beginning
import server.lead.loading
import server.lead.startup
from server.api.app import create_app
from server.api.middleware import Edge
from server.api.services import Services
from server.cache.files import DiskTier
from server.cli import main
from server.llama.llamacpp import ChooseAttention
from server.llama.options import LlamaOptions
from server.speculation.wire.presence import VocabularyCard, vocabulary_card
from tests.checks import check_engine
from tests.contract.witness import witnessed
from tests.fake_backend import FakeBackend, FakeModel, FakeVocabulary

STEP_S = 0.003  # of a toy's decode: a reply of 100 tokens takes long enough for a fault to meet it
DRAFTER_STEP_S = 0.001
ERROR = 0.25  # share of a toy drafter's guesses that are wrong
CLOCK_STEP_S = 86_400  # a signal moves the clock a day ahead, the next one back
# The number by which mallopt() of glibc knows how many heaps threads may have. With one each, malloc_trim()
# leaves the free end of all but the main one, twice the largest block freed: idle leads scattered by 20 MiB.
ARENA_MAX = -8


@dataclass(frozen=True)
class ToyModel(FakeModel):
    """A toy with what the lead needs of a LoadedModel."""

    n_params: int = 0
    n_bytes: int = 0
    n_blocks: int = 0
    n_vocab: int = FakeVocabulary.size
    description: str = "toy"
    quantization: str | None = None

    def metadata(self, _key: str) -> str | None:
        return None


class ToyBackend(FakeBackend):
    """A FakeBackend that opens like a LlamaBackend.

    attention: it has none.
    """

    description, tool_template, n_params, n_bytes, keys = "toy", None, 0, 0, None

    def __init__(
        self,
        options: LlamaOptions,
        attention: ChooseAttention | None = None,
        *,
        error: float = 0.0,
        step_s: float = STEP_S,
    ) -> None:
        super().__init__(ToyModel(seed=3, error=error), n_cells=options.n_cells, n_seqs=options.n_seqs)
        self.n_batch, self.step_s = options.n_batch, step_s
        self.options = options


def run(log: Connection, toy: bool, arguments: list[str], folder: str) -> None:
    """Be this duo process until it ends, with the process that asked or before.

    log: takes what it prints.
    """
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    log.close()
    ctypes.CDLL(None).mallopt(ARENA_MAX, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ |= {"XDG_CACHE_HOME": folder, "TMPDIR": folder, "OMP_WAIT_POLICY": "passive"}
    _move_clock_by_signal()
    _replace(server.lead.startup, create_app=_checked_app)
    if toy:
        _replace(server.lead.loading, LlamaBackend=ToyBackend)
        _replace(drafters.kinds, LlamaBackend=partial(ToyBackend, error=ERROR, step_s=DRAFTER_STEP_S))
        _replace(server.lead.beginning, load_ranker=_nothing)  # it reads its file
        _replace(server.lead.startup, card_of=_toy_card)
        _replace(
            server.lead.startup, remembered_in_small_context=_no_times
        )  # it decodes in a context of llama.cpp
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - until the end
    sys.exit(main(arguments))


def _replace(module: ModuleType, **names: object) -> None:
    vars(module).update(names)


def _nothing(*_: object) -> None:
    pass


def _toy_card(*_: object) -> VocabularyCard:
    return vocabulary_card(FakeVocabulary())


def _no_times(*_: object) -> dict[int, float]:
    return {}


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _move_clock_by_signal() -> None:
    """Have SIGUSR1 move time.time() and time.time_ns()."""
    true_s, true_ns, jumps = time.time, time.time_ns, count(1)
    ahead_s = 0

    def jump(*_: object) -> None:
        nonlocal ahead_s
        ahead_s = CLOCK_STEP_S * (next(jumps) % 2)

    time.time = lambda: true_s() + ahead_s
    time.time_ns = lambda: true_ns() + ahead_s * 10**9
    defaults = DiskTier.__init__.__kwdefaults__
    assert defaults
    defaults["clock"] = lambda: time.time_ns()
    signal.signal(signal.SIGUSR1, jump)


def _checked_app(services: Services, edge: Edge) -> Any:
    against = list[str]()  # what replies have against the contract
    app = witnessed(create_app(services, edge), against)
    answers: dict[str, Callable[[], dict[str, Any]]] = {
        "/check": lambda: {"fault": "; ".join(against) or _fault(services)},
        "/size": lambda: {"bytes": _size(services)},
    }

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        answer = answers.get(scope["path"]) if scope["type"] == "http" else None
        if answer is None:
            await app(scope, receive, send)
            return
        body = orjson.dumps(answer())
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return checked


def own_memory(pid: int | str) -> int:
    """Return the bytes of a process's own memory: resident, less what it shares with files.

    pid: or "self".
    """
    resident, shared = Path("/proc", str(pid), "statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _give_back() -> None:
    """Free what nobody uses."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _size(services: Services) -> int:
    """Return the bytes of this process without the conversations that --cache-ram bounds."""
    _give_back()
    return own_memory("self") - services.cached().memory_bytes


def _fault(services: Services) -> str:
    """Return which rule an idle lead breaks, or "".

    Frees memory that nobody uses.
    """
    _give_back()
    engine: Any = services.generator
    try:
        check_engine(engine.engine)
    except AssertionError as error:
        return str(error) or "check_engine"
    return ""
