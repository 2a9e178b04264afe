"""Many more clients than a lead can serve: `python -m benchmarks.overload [--clients 500] [--seconds 60]`.

A lead with 8 slots and the bundled model. Each client asks again as soon as it is answered, after Retry-After
where it is refused: most for short replies, some with long prompts. They have four API keys; the first has
half of the clients. Meanwhile /health, /metrics and the page are asked for ten times a second, each on a
connection of its own.

The clients share the machine with the lead. They are a process of their own with a lower priority, who asks
for the pages is another. How long the lead's event loop computed, and how long it waited for a core, is the
kernel's count: what it waited is the machine's, not duo's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import uvloop

from benchmarks import program, report
from benchmarks.processes import Command, Process, duo, options_of

KEYS = ("sk-one", "sk-two", "sk-three", "sk-four")
PAGES = ("/health", "/metrics", "/")
PERIOD_S = 0.1  # between two looks at the pages
N_TOKENS, N_LONG = 24, 10  # tokens of a reply; every N_LONG-th client brings a long prompt
LONG = "The sea was calm and the boat went on. " * 60
NICENESS = 10  # of the clients
QUIET_S = 3.0  # of looks at the pages before the storm
MOST_BACK_S = 1.0  # between two attempts of a client, whatever Retry-After says: the load shall last

Waits: TypeAlias = Callable[[], float]


@dataclass(slots=True)
class Storm:
    """What clients met. answered: seconds of each whole reply, with when it came, by kind and key; refused:
    429 with Retry-After; wrong: anything else, in words; pages: of each look the seconds, and those in which
    neither the lead's event loop nor the visitor waited for a core."""

    answered: list[tuple[str, str, float, float]] = field(default_factory=list[tuple[str, str, float, float]])
    refused: int = 0
    wrong: Counter[str] = field(default_factory=Counter[str])
    pages: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])


async def exchange(
    port: int, method: str, path: str, key: str, body: bytes = b""
) -> tuple[int, bytes, bytes]:
    """Status, head and body of one answer, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        head += f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer, _, rest = (await reader.read(-1)).partition(b"\r\n\r\n")
        return int(answer[9:12] or 0), answer.lower(), rest
    finally:
        writer.close()


def key_of(i: int) -> str:
    """The first one's for every second client, one of the others for the rest."""
    return KEYS[0] if i % 2 else KEYS[1 + i // 2 % (len(KEYS) - 1)]


def body_of(kind: str, n_tokens: int) -> bytes:
    content = LONG if kind == "long" else "Tell me a story."
    asked = {"messages": [{"role": "user", "content": content}], "stream": True, "max_tokens": n_tokens}
    options = {"stream_options": {"include_usage": True}, "ignore_eos": True}
    return json.dumps(asked | options).encode()


def is_whole(stream: bytes, n_tokens: int) -> bool:
    """Whether a reply has all of its tokens, and an end."""
    return f'"completion_tokens":{n_tokens},'.encode() in stream and b"data: [DONE]" in stream


async def _client(storm: Storm, port: int, i: int, until: float, n_tokens: int) -> None:
    kind, key = "long" if i % N_LONG == 0 else "short", key_of(i)
    body = body_of(kind, n_tokens)
    while (asked := time.monotonic()) < until:
        try:
            status, head, rest = await exchange(port, "POST", "/v1/chat/completions", key, body)
        except OSError as error:
            storm.wrong[f"{type(error).__name__}"] += 1
            continue
        now = time.monotonic()
        if status == 200 and is_whole(rest, n_tokens):
            storm.answered.append((kind, key, now - asked, now))
        elif status == 429 and b"\r\nretry-after: " in head:
            storm.refused += 1
            await asyncio.sleep(MOST_BACK_S)
        else:
            storm.wrong[f"{status}: {rest[-120:]!r}"] += 1


async def _visitor(storm: Storm, port: int, path: str, until: float, waits: Waits) -> None:
    seconds = storm.pages.setdefault(path, [])
    while (asked := time.monotonic()) < until:
        waited = waits()
        status, _, _ = await exchange(port, "GET", path, KEYS[0])
        took = time.monotonic() - asked
        seconds.append((took, max(0.0, took - (waits() - waited))))
        if status != 200:
            storm.wrong[f"{path}: {status}"] += 1
        await asyncio.sleep(max(0.0, PERIOD_S - took))


async def rage(port: int, n_clients: int, seconds: float, n_tokens: int = N_TOKENS) -> Storm:
    """All clients at once, for `seconds`; each then ends with its last answer."""
    storm, until = Storm(), time.monotonic() + seconds
    await asyncio.gather(*(_client(storm, port, i, until, n_tokens) for i in range(n_clients)))
    return storm


async def visit(port: int, pid: int, seconds: float) -> Storm:
    """Look at the pages of the lead with this process id for `seconds`."""
    storm, until = Storm(), time.monotonic() + seconds

    def waits() -> float:
        return loop_seconds(pid)[1] + loop_seconds(os.getpid())[1]

    await asyncio.gather(*(_visitor(storm, port, path, until, waits) for path in PAGES))
    return storm


def _rage(port: int, n_clients: int, seconds: float) -> Storm:
    os.nice(NICENESS)
    return uvloop.run(rage(port, n_clients, seconds))


def both(lead: Process, n_clients: int, seconds: float) -> tuple[Storm, Storm]:
    """What clients met, and what visitors did meanwhile."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        storm = pool.submit(_rage, lead.port, n_clients, seconds)
        visits = uvloop.run(visit(lead.port, lead.pid, seconds))
        return storm.result(), visits


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def visit_now(lead: Process) -> Storm:
    return uvloop.run(visit(lead.port, lead.pid, QUIET_S))


def loop_seconds(pid: int) -> tuple[float, float]:
    """So far the seconds of a process' main thread on a core, and those that it waited for one."""
    computed, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(computed) / 1e9, int(waited) / 1e9


def looks(when: str, visits: Storm) -> list[list[str]]:
    """A row for each page: median and p99 in milliseconds, then without waits for a core."""
    rows: list[list[str]] = []
    for path, times in visits.pages.items():
        cells = [percentile(column, share) for column in zip(*times, strict=True) for share in (0.5, 0.99)]
        rows.append([path, when, str(len(times)), *(f"{1e3 * cell:.0f}" for cell in cells)])
    return rows


def told(storm: Storm) -> str:
    """The replies in a table."""
    middle = sorted(at for *_, at in storm.answered)[len(storm.answered) // 2]
    lines: list[list[str]] = []
    groups = {
        "all": storm.answered,
        "first half": [one for one in storm.answered if one[3] < middle],
        "second half": [one for one in storm.answered if one[3] >= middle],
        **{kind: [one for one in storm.answered if one[0] == kind] for kind in ("short", "long")},
        **{key: [one for one in storm.answered if one[1] == key] for key in KEYS},
    }
    for name, answers in groups.items():
        times = [took for _, _, took, _ in answers]
        cells = [f"{percentile(times, share):.2f}" if times else "-" for share in (0.5, 0.99)]
        lines.append([name, str(len(times)), *cells])
    return report.table(["answered", "replies", "median s", "p99 s"], lines)


def measure(args: argparse.Namespace) -> program.Result:
    """Raises StartupError."""
    size = options_of(args, "model", "threads", parallel=8, api_key=",".join(KEYS))
    command = Command("duo", duo("serve", **size))
    with ExitStack() as stack:
        lead = stack.enter_context(Process(command))
        lead.wait_ready()
        quiet, before, began = visit_now(lead), resident_mib(lead.pid), loop_seconds(lead.pid)
        storm, visits = both(lead, args.clients, args.seconds)
        after, ended = resident_mib(lead.pid), loop_seconds(lead.pid)
    wrong = "; ".join(f"{n} times {what}" for what, n in (storm.wrong + visits.wrong).most_common(5))
    computed, waited = (b - a for a, b in zip(began, ended, strict=True))
    pages = looks("before", quiet) + looks("in the storm", visits)
    return "Overload", [
        f"{args.clients} clients, 8 slots, {args.seconds:g} s. Refused with 429 and Retry-After: "
        f"{storm.refused}. Else wrong: {wrong or 'nothing'}. Memory of the lead: {before:.0f} MiB before, "
        f"{after:.0f} after. Its event loop computed for {computed:.1f} s and waited for a core for "
        f"{waited:.1f} s.",
        told(storm),
        report.table(
            ["page", "when", "looks", "median ms", "p99 ms", "median on a core", "p99 on a core"], pages
        ),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = program.make_parser("overload", "Many more clients than slots.", "model", "threads")
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0)
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
