"""Start leads with dead, lying, lagging, far or flapping drafters, and drafters that die by a schedule."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks import texts
from benchmarks.link import Link
from benchmarks.processes import READY_POLL_S, Command, Options, Process, drafter, duo, options_of, start
from benchmarks.prompts import Prompt
from server.errors import StartupError
from server.flags import n_cores
from server.local.embedded import EmbeddedServer

PRESENT_S = 30.0  # until the lead must see the drafters


@dataclass(frozen=True, slots=True)
class Crash:
    """A kill -9 `at` seconds after the beginning, and a new start `away` seconds later."""

    at: float
    away: float


class Crew:
    """Drafter processes of one lead, which all die by a schedule.

    A context: its end stops the drafters, and raises StartupError if they did not come back.

    Args:
        commands: The drafters.
        schedule: When the drafters die, and for how long.
        n_present: Returns how many drafters the lead sees now.
    """

    def __init__(
        self, commands: Sequence[Command], schedule: Sequence[Crash], n_present: Callable[[], int]
    ) -> None:
        self._commands = commands
        self._schedule = schedule
        self._n_present = n_present
        self._processes: list[Process] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow_schedule, name="crashes", daemon=True)
        self._began = 0.0
        self._failure: StartupError | None = None

    def __enter__(self) -> Crew:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, _: object, error: object, trace: object) -> None:
        self._ended.set()
        self._thread.join()
        self._stop()
        if self._failure and error is None:
            raise self._failure

    def _start(self) -> None:
        """Start the drafters and wait until the lead sees them. Raises StartupError."""
        for command in self._commands:
            self._processes.append(Process(command))
        deadline = time.monotonic() + PRESENT_S
        while self._n_present() < len(self._commands) and not self._ended.is_set():
            for process in self._processes:
                process.check_alive()
            if time.monotonic() > deadline:
                raise StartupError(f"the lead does not see its drafters after {PRESENT_S:.0f} s")
            self._ended.wait(READY_POLL_S)

    def _stop(self) -> None:
        with ExitStack() as stack:
            for process in self._processes:
                stack.callback(process.stop)
        self._processes = []

    def _follow_schedule(self) -> None:
        try:
            for crash in self._schedule:
                self._crash_and_return(crash)
        except StartupError as error:
            self._failure = error

    def _crash_and_return(self, crash: Crash) -> None:
        if self._ended.wait(max(0.0, self._began + crash.at - time.monotonic())):
            return
        for process in self._processes:
            os.kill(process.pid, signal.SIGKILL)
        self._stop()
        if self._ended.wait(crash.away):
            return
        while self._n_present() > 0 and not self._ended.is_set():
            self._ended.wait(READY_POLL_S)  # else the lead could take a new process for the old one
        self._start()


FLAPS = tuple(Crash(3.0 * i + 0.3, 1.0) for i in range(400))  # alive for 0.3 s of each 3, for 20 minutes
FAULTS = ("dead", "lying", "lagging", "far", "flapping")
FAR_S, FAR_LOSS = 0.2, 0.05  # each way, and of packets: of a far drafter's network
REPLAYED = {"lying": (0, 1), "far": (0.9, 5)}  # share of right guesses, ms of each


def enter(
    stack: ExitStack, args: argparse.Namespace, prompts: Sequence[Prompt]
) -> tuple[list[Process], Callable[[], None]]:
    """Start a lead in its own pool for each of --faults; return the leads, and a call that adds drafters.

    First record the model's replies to the prompts if a lying or far drafter needs them. Raises DuoError.
    """
    if not args.faults:
        return [], lambda: None
    known = stack.enter_context(texts.directory())
    if {"lying", "far"} & set(args.faults):
        texts.save(texts.record_by(args.model, args.threads or n_cores(), prompts, args.max_tokens), known)
    redis = stack.enter_context(EmbeddedServer(listen="127.0.0.1"))
    leads = start(stack, [_lead(args, fault, redis.url) for fault in args.faults])
    url = {"far": _far_url(stack, redis)} if "far" in args.faults else {}

    def join() -> None:
        for fault, lead in zip(args.faults, leads, strict=True):
            _join(stack, fault, lead, _drafter(args, fault, url.get(fault, redis.url), known))

    return leads, join


def _far_url(stack: ExitStack, redis: EmbeddedServer) -> str:
    """Return the URL of Redis behind a slow, lossy network."""
    assert redis.address
    assert redis.url_elsewhere
    link = stack.enter_context(closing(Link(*redis.address, latency_s=FAR_S, loss=FAR_LOSS)))
    return redis.url_elsewhere.replace(f":{redis.address[1]}", f":{link.port}")


def _lead(args: argparse.Namespace, fault: str, redis_url: str) -> Command:
    size = options_of(args, "model", "threads", parallel=1, ctx_size=texts.CTX_SIZE)
    return Command(f"duo, {fault} drafter", duo("serve", redis=redis_url, pool=fault, **size))


def _drafter(args: argparse.Namespace, fault: str, redis_url: str, known: Path) -> Command:
    place: Options = {"redis": redis_url, "pool": fault}
    if fault in REPLAYED:  # which takes nothing of the lead's cores
        share, td_ms = REPLAYED[fault]
        replay: Options = {"kind": "replay", "texts": known, "accept": share, "td_ms": td_ms}
        return drafter(fault, vocab_from=args.model, **place, **replay)
    latency = 300 if fault == "lagging" else None
    return drafter(fault, model=args.draft_model, latency_ms=latency, **place)


def _join(stack: ExitStack, fault: str, lead: Process, command: Command) -> None:
    if fault == "dead":
        process = stack.enter_context(Process(command))
        lead.wait_ready(n_drafters=1)
        os.kill(process.pid, signal.SIGSTOP)  # present for a while, and silent
        stack.callback(os.kill, process.pid, signal.SIGCONT)
        return

    def crew(crashes: Sequence[Crash]) -> Crew:
        return Crew([command], crashes, lambda: len(lead.health().get("drafters", [])))

    if fault == "flapping":  # a start takes a core for a second, so only while its own lead is asked
        lead.company = lambda: crew(FLAPS)
    else:
        stack.enter_context(crew(()))
