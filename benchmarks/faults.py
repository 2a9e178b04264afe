"""Leads whose drafters are dead, lying, lagging or flapping."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import texts
from benchmarks.crashes import Crash, Crew
from benchmarks.processes import Command, Options, Process, drafter, duo, options_of, start
from benchmarks.prompts import Prompt
from server.local.embedded import EmbeddedServer

FLAPS = tuple(Crash(3.0 * i + 0.3, 1.0) for i in range(400))  # alive for 0.3 s of each 3, for 20 minutes
FAULTS = ("dead", "lying", "lagging", "flapping")


def enter(
    stack: ExitStack, args: argparse.Namespace, prompts: Sequence[Prompt]
) -> tuple[list[Process], Callable[[], None]]:
    """One lead for each of --faults, ready, in a pool of its own, and what has their drafters join. Records
    first what the model says to the prompts, which the lying drafter needs. Raises DuoError."""
    if not args.faults:
        return [], lambda: None
    known = stack.enter_context(texts.directory())
    if "lying" in args.faults:
        texts.save(texts.record_by(args.model, args.threads, prompts, args.max_tokens), known)
    redis = stack.enter_context(EmbeddedServer())
    leads = start(stack, [_lead(args, fault, redis.url) for fault in args.faults])

    def join() -> None:
        for fault, lead in zip(args.faults, leads, strict=True):
            _join(stack, fault, lead, _drafter(args, fault, redis.url, known))

    return leads, join


def _lead(args: argparse.Namespace, fault: str, redis_url: str) -> Command:
    size = options_of(args, "model", "threads", parallel=1, ctx_size=texts.CTX_SIZE)
    return Command(f"duo, {fault} drafter", duo("serve", redis=redis_url, pool=fault, **size))


def _drafter(args: argparse.Namespace, fault: str, redis_url: str, known: Path) -> Command:
    place: Options = {"redis": redis_url, "pool": fault}
    if fault == "lying":
        wrong: Options = {"kind": "replay", "texts": known, "accept": 0, "td_ms": 1, "vocab_from": args.model}
        return drafter(fault, **place, **wrong)
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
