"""Several clients at once. In each round k clients ask one server at a time, each of them its own prompts one
after the other; then the next server. A prompt that is asked again has another salt, so that in duo neither a
cached prefix nor a former reply helps.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import TypeAlias

from benchmarks import report
from benchmarks.client import Reply, ask
from benchmarks.processes import Process
from benchmarks.prompts import Prompt, endless

_HEADS = (
    "clients | server | t/s in all | ratio | slowest client | worst | gap p95, ms | longest | first text, ms"
    " | longest | drafts accepted | same text"
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One server asked by several clients at once. total_rate: tokens of all by the seconds from the first
    request to the last end. slowest: tokens per second of the slowest client by the mean of all clients.
    gap_*: milliseconds between two pieces of one text; first*: milliseconds to the first piece."""

    total_rate: float
    slowest: float
    gap_p95: float
    gap_longest: float
    first: float
    first_longest: float
    n_drafted: int
    n_accepted: int


Bout: TypeAlias = Sequence[Sequence[Sequence[Reply]]]
"""Replies to the same prompts, by server and by client."""


def ask_at_once(port: int, shares: Sequence[Sequence[Prompt]], max_tokens: int) -> list[list[Reply]]:
    """One client for each share of the prompts; all begin together. Raises ReplyError."""
    begin = threading.Barrier(len(shares))

    def client(share: Sequence[Prompt]) -> list[Reply]:
        begin.wait()
        return [ask(port, prompt, max_tokens) for prompt in share]

    with ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(client, shares))


def run(servers: Sequence[Process], args: argparse.Namespace) -> list[Bout]:
    """Rounds with every number of clients in turn, each asking another server first. Raises ReplyError."""
    bouts: list[Bout] = []
    prompts = endless()
    for turn in range(args.rounds):
        for n in args.clients:
            shares = [[next(prompts) for _ in range(args.prompts)] for _ in range(n)]
            order = [(turn + i) % len(servers) for i in range(len(servers))]
            replies = {i: ask_at_once(servers[i].port, shares, args.max_tokens) for i in order}
            bouts.append([replies[i] for i in range(len(servers))])
            rates = " | ".join(f"{figures(clients).total_rate:.1f} t/s" for clients in bouts[-1])
            print(f"round {turn + 1}, {n} clients: {rates}", flush=True)
    return bouts


# -- figures, pure ----------------------------------------


def figures(clients: Sequence[Sequence[Reply]]) -> Figures:
    """Of one server's replies, at least one for each client."""
    replies = [reply for client in clients for reply in client]
    rates = [_rate(client) for client in clients]
    gaps = sorted(1000 * (b - a) for reply in replies for a, b in pairwise(reply.pieces))
    firsts = [reply.first_ms for reply in replies]
    return Figures(
        total_rate=_rate(replies),
        slowest=min(rates) / mean(rates),
        gap_p95=gaps[min(len(gaps) - 1, int(0.95 * len(gaps)))] if gaps else 0.0,
        gap_longest=gaps[-1] if gaps else 0.0,
        first=median(firsts),
        first_longest=max(firsts),
        n_drafted=sum(reply.n_drafted for reply in replies),
        n_accepted=sum(reply.n_accepted for reply in replies),
    )


def _rate(replies: Sequence[Reply]) -> float:
    seconds = max(reply.ended for reply in replies) - min(reply.asked for reply in replies)
    return sum(reply.n_tokens for reply in replies) / seconds


def table(names: Sequence[str], bouts: Sequence[Bout]) -> str:
    """Markdown: a line for each number of clients and server."""
    rows: list[list[str]] = []
    for n in sorted({len(bout[0]) for bout in bouts}):
        some = [bout for bout in bouts if len(bout[0]) == n]
        found = [[figures(clients) for clients in bout] for bout in some]
        equal = [is_equal for bout in some for is_equal in _equal(bout)]
        rows += [
            [str(n), name, *_cells(i, found), f"{sum(equal)} of {len(equal)}"] for i, name in enumerate(names)
        ]
    return report.table(_HEADS, rows, n_words=2)


def _equal(bout: Bout) -> list[bool]:
    """For each prompt whether all servers say the same."""
    texts = [[reply.text for client in clients for reply in client] for clients in bout]
    return [len(set(of_one_prompt)) == 1 for of_one_prompt in zip(*texts, strict=True)]


def _cells(i: int, bouts: Sequence[Sequence[Figures]]) -> list[str]:
    """Of server i: medians over rounds, except `worst` and `longest`; ratios to the first one's rate."""
    own = [bout[i] for bout in bouts]
    return [
        f"{median(f.total_rate for f in own):.1f}",
        f"{median(bout[i].total_rate / bout[0].total_rate for bout in bouts):.2f}",
        f"{median(f.slowest for f in own):.2f}",
        f"{min(f.slowest for f in own):.2f}",
        f"{median(f.gap_p95 for f in own):.0f}",
        f"{max(f.gap_longest for f in own):.0f}",
        f"{median(f.first for f in own):.0f}",
        f"{max(f.first_longest for f in own):.0f}",
        report.accepted(sum(f.n_accepted for f in own), sum(f.n_drafted for f in own)),
    ]
