"""What can go wrong in a live system, each with what heals it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from random import Random
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit
from typing import Any, TypeAlias, cast

from tests.chaos.clients import asking, vanish
from tests.chaos.system import Program, System

Heal: TypeAlias = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: `apply` breaks something and returns what heals it.

    target: faults of one target never overlap. says: a pattern of the lead's log after it, "" if it may pass
    unnoticed. till_told: it lasts until the log says so. ends_lead: it loses running replies.
    """

    name: str
    target: str
    apply: Callable[[System, Random], Heal]
    says: str = ""
    till_told: bool = False
    ends_lead: bool = False


LOST, LEFT = r"lost the Redis server at redis://127.0.0.1:\d+", "drafter drafter-.* left"


def nothing() -> None:
    pass


def some_drafter(system: System, chance: Random) -> Program:
    return chance.choice(system.drafters)


# -- Redis


def redis_killed(system: System, chance: Random) -> Heal:
    system.redis.kill()
    return system.redis.start  # empty


def redis_stopped(system: System, chance: Random) -> Heal:
    assert system.redis.process
    process = system.redis.process
    process.send_signal(signal.SIGSTOP)
    return lambda: process.send_signal(signal.SIGCONT)


def flushed(system: System, chance: Random) -> Heal:
    system.client.flushall()
    return nothing


def out_of_memory(system: System, chance: Random) -> Heal:
    system.client.config_set("maxmemory", 1)
    return lambda: system.client.config_set("maxmemory", "256mb")


def password_changed(system: System, chance: Random) -> Heal:
    system.client.config_set("requirepass", "sesame")
    system.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    return lambda: system.client.config_set("requirepass", "")


def server_clock_ahead(system: System, chance: Random) -> Heal:
    """Have the server's clock a century ahead for a moment: ids of streams never go back."""
    for key in cast(list[bytes], system.client.keys()):
        if system.client.type(key) == b"stream":
            system.client.xadd(key, {"w": b""}, id="4999999999999-*", nomkstream=True)
    return nothing


# -- processes


def drafter_killed(system: System, chance: Random) -> Heal:
    drafter = some_drafter(system, chance)
    drafter.end()
    return drafter.start


def drafter_restarted(system: System, chance: Random) -> Heal:
    drafter = some_drafter(system, chance)
    drafter.send(signal.SIGTERM)
    return drafter.restart


def drafter_stopped(system: System, chance: Random) -> Heal:
    drafter = some_drafter(system, chance)
    drafter.send(signal.SIGSTOP)
    return lambda: drafter.send(signal.SIGCONT)


def lead_killed(system: System, chance: Random) -> Heal:
    system.lead.end()
    return system.lead.start


def lead_restarted(system: System, chance: Random) -> Heal:
    system.lead.end(signal.SIGTERM)
    return system.lead.start


def lead_stopped(system: System, chance: Random) -> Heal:
    system.lead.send(signal.SIGSTOP)
    return lambda: system.lead.send(signal.SIGCONT)


def clocks_jump(system: System, chance: Random) -> Heal:
    def jump() -> None:
        for program in system.programs.values():
            program.send(signal.SIGUSR1)

    jump()
    return jump


# -- the network


def lead_cut_off(system: System, chance: Random) -> Heal:
    system.links["lead"].cut()
    return system.links["lead"].heal


def drafter_cut_off(system: System, chance: Random) -> Heal:
    link = system.links[some_drafter(system, chance).name]
    link.cut()
    return link.heal


def network_slow(system: System, chance: Random) -> Heal:
    links = chance.sample(list(system.links.values()), 2)
    for link in links:
        link.latency_s, link.loss = chance.choice([0.02, 0.2, 2.5]), chance.choice([0.0, 0.3])

    def heal() -> None:
        for link in links:
            link.latency_s = link.loss = 0.0

    return heal


# -- clients


def clients_vanish(system: System, chance: Random) -> Heal:
    seeds = [chance.randrange(1 << 30) for _ in range(8)]
    threads = [threading.Thread(target=vanish, args=(system.port, Random(seed))) for seed in seeds]
    for thread in threads:
        thread.start()

    def heal() -> None:
        for thread in threads:
            thread.join()

    return heal


def slow_readers(system: System, chance: Random) -> Heal:
    """Ask for replies and read nothing of them."""
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(asking(system.port))
        return stack.pop_all().close


# -- the disk


def disk_full(system: System, chance: Random) -> Heal:
    """Let no file of the lead grow.

    Its log is a pipe.
    """
    pid = system.lead.pid

    def limit(n_bytes: int) -> None:
        with suppress(ProcessLookupError):
            prlimit(pid, RLIMIT_FSIZE, (n_bytes, RLIM_INFINITY))

    limit(0)
    return lambda: limit(RLIM_INFINITY)


def cache_read_only(system: System, chance: Random) -> Heal:
    """Put a file in the directory's place, so that nobody can write there, not even root."""
    aside = system.cache.with_name("aside")
    system.cache.rename(aside)
    system.cache.touch()

    def heal() -> None:
        os.unlink(system.cache)
        aside.rename(system.cache)

    return heal


FAULTS = [
    Fault("Redis is killed", "redis", redis_killed, LOST, till_told=True),
    Fault("Redis stops", "redis", redis_stopped),
    Fault("Redis is emptied", "redis", flushed),
    Fault("Redis is out of memory", "redis", out_of_memory, LOST, till_told=True),
    Fault("Redis wants a password", "redis", password_changed, LOST, till_told=True),
    Fault("Redis's clock was ahead", "redis", server_clock_ahead),
    Fault("a drafter is killed", "drafters", drafter_killed, LEFT),
    Fault("a drafter restarts", "drafters", drafter_restarted, LEFT),
    Fault("a drafter stops", "drafters", drafter_stopped),
    Fault("the lead is killed", "lead", lead_killed, ends_lead=True),
    Fault("the lead restarts", "lead", lead_restarted, ends_lead=True),
    Fault("the lead stops", "lead", lead_stopped),
    Fault("clocks jump", "clocks", clocks_jump),
    Fault("the lead is cut off", "network", lead_cut_off, LOST, till_told=True),
    Fault("a drafter is cut off", "network", drafter_cut_off),
    Fault("the network is slow", "network", network_slow),
    Fault("clients vanish", "vanishing", clients_vanish),
    Fault("clients do not read", "reading", slow_readers),
    Fault("the disk is full", "disk", disk_full),
    Fault("the cache is read-only", "disk", cache_read_only),
]
