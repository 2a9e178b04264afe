"""Ask several servers the same prompts in turn, and make tables of the replies.

In a heat, one prompt goes to all servers; ratios compare the replies to it. In a bout, k clients ask one
server at a time, each client its own prompts one after the other, and then the next server. A prompt that is
asked again has another salt, so that neither a cached prefix nor a former reply helps duo.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TypeAlias

from benchmarks import report
from benchmarks.client import Reply, ReplyError, ask
from benchmarks.processes import Process
from benchmarks.prompts import Prompt, endless, load

RATED_TOKENS = 16  # tokens; below, the rate of a reply is mostly the clock's error
WARM_UP_TOKENS = 8
_STANDINGS = (
    "server | t/s, its own report | ratio | t/s, client's clock | ratio | t/s in all | first text, ms"
    " | drafts accepted | same text | idle CPU"
)
_BOUTS = (
    "clients | server | t/s in all | ratio | slowest client | worst | gap p95, ms | longest | first text, ms"
    " | longest | drafts accepted | same text"
)


@dataclass(frozen=True, slots=True)
class Heat:
    """One prompt, asked once of every server; replies in the servers' order."""

    prompt: Prompt
    replies: list[Reply]


@dataclass(frozen=True, slots=True)
class Standing:
    """The results of one server over all heats; rates and ratios are medians.

    A heat with a reply below RATED_TOKENS tokens counts in no median of rates or ratios.
    """

    name: str
    server_rate: float | None  # tokens per second, by the server's own report
    client_rate: float | None
    server_ratio: float | None  # to the first server's rate, heat by heat
    client_ratio: float | None
    first_ms: float
    n_equal: int  # heats with the first server's text
    n_heats: int
    n_drafted: int
    n_accepted: int
    total_rate: float | None = None  # tokens of all heats by their seconds, without each first token


def run(
    servers: Sequence[Process],
    prompts: Sequence[Prompt],
    max_tokens: int,
    on_heat: Callable[[Heat], None] = lambda heat: None,
    left_out: list[str] | None = None,
) -> list[Heat]:
    """Ask every server every prompt, one request at a time. The server that is asked first rotates.

    Args:
        servers: The servers.
        prompts: The prompts.
        max_tokens: Most tokens of a reply.
        on_heat: Called after each prompt.
        left_out: Takes a line for each prompt that a server other than duo fails to answer.

    Raises:
        ReplyError: A server did not answer.
    """
    heats: list[Heat] = []
    for i, prompt in enumerate(prompts):
        order = [(i + j) % len(servers) for j in range(len(servers))]
        replies: dict[int, Reply] = {}
        for j in order:
            try:
                replies[j] = _asked(servers[j], prompt, max_tokens)
            except ReplyError as error:
                if left_out is None or servers[j].name.startswith("duo"):
                    raise
                left_out.append(str(error))
                break
        else:
            heats.append(Heat(prompt, [replies[j] for j in range(len(servers))]))
            on_heat(heats[-1])
    return heats


def _asked(server: Process, prompt: Prompt, max_tokens: int) -> Reply:
    """Return the server's reply. Raises ReplyError with the server's name, StartupError if it has ended."""
    try:
        with server.company():
            return ask(server.port, prompt, max_tokens)
    except ReplyError as error:
        server.check_alive()
        raise ReplyError(f"{server.name}, {prompt.id}: {error}") from error


def standings(names: Sequence[str], heats: Sequence[Heat]) -> list[Standing]:
    """Return the standings of all servers against the first. Pure."""
    return [_standing(name, heats, i) for i, name in enumerate(names)]


def warm_up(servers: Sequence[Process]) -> None:
    """Ask every server for a few tokens. Raises ReplyError."""
    run(servers, load(1), WARM_UP_TOKENS)


def _standing(name: str, heats: Sequence[Heat], i: int) -> Standing:
    own = [heat.replies[i] for heat in heats]
    long = [heat for heat in heats if min(reply.n_tokens for reply in heat.replies) >= RATED_TOKENS]
    pairs = [(heat.replies[i], heat.replies[0]) for heat in long]
    return Standing(
        name=name,
        server_rate=_median([mine.server_rate for mine, _ in pairs]),
        client_rate=_median([mine.client_rate for mine, _ in pairs]),
        server_ratio=_median([_ratio(mine.server_rate, first.server_rate) for mine, first in pairs]),
        client_ratio=_median([_ratio(mine.client_rate, first.client_rate) for mine, first in pairs]),
        first_ms=statistics.median(reply.first_ms for reply in own),
        n_equal=sum(heat.replies[i].text == heat.replies[0].text for heat in heats),
        n_heats=len(heats),
        n_drafted=sum(reply.n_drafted for reply in own),
        n_accepted=sum(reply.n_accepted for reply in own),
        total_rate=_total(own),
    )


def _total(replies: Sequence[Reply]) -> float | None:
    timed = [(reply.n_tokens - 1, reply.client_rate) for reply in replies if reply.client_rate]
    seconds = sum(n / rate for n, rate in timed)
    return sum(n for n, _ in timed) / seconds if seconds else None


def _ratio(mine: float | None, first: float | None) -> float | None:
    return mine / first if mine and first else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def print_heat(heat: Heat) -> None:
    print(heat_line(heat), flush=True)


def heat_line(heat: Heat) -> str:
    """Return a line of each server's own tokens/s, and its ratio to the first server's."""
    first = heat.replies[0]
    parts = [f"{report.number(first.server_rate)} t/s"]
    for reply in heat.replies[1:]:
        ratio = reply.server_rate / first.server_rate if reply.server_rate and first.server_rate else None
        other = "" if reply.text == first.text else " (other text)"
        parts.append(f"{report.number(reply.server_rate)} x {report.number(ratio, 2)}{other}")
    return f"{heat.prompt.id:16} {first.n_tokens:4} tokens: " + " | ".join(parts)


def standings_table(standings: Sequence[Standing], idle: Sequence[float | None]) -> str:
    """Return markdown.

    idle: Share of a core that each server used while idle.
    """
    rows = [
        (
            s.name,
            report.number(s.server_rate),
            report.number(s.server_ratio, 2),
            report.number(s.client_rate),
            report.number(s.client_ratio, 2),
            report.number(s.total_rate),
            report.number(s.first_ms),
            report.accepted(s.n_accepted, s.n_drafted),
            f"{s.n_equal} of {s.n_heats}",
            report.percent(share),
        )
        for s, share in zip(standings, idle, strict=True)
    ]
    return report.table(_STANDINGS, rows)


# -- several clients at once ----------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    """One server's speeds with several clients at once."""

    total_rate: float  # tokens per second of all replies, from the first request to the last end
    slowest: float  # tokens per second of the slowest client, divided by the mean of all
    gap_p95: float  # ms between two pieces of one text
    gap_longest: float
    first: float  # ms to the first piece, the median
    first_longest: float
    n_drafted: int
    n_accepted: int


Bout: TypeAlias = Sequence[Sequence[Sequence[Reply]]]
"""Replies to the same prompts, by server and by client."""


def ask_at_once(port: int, shares: Sequence[Sequence[Prompt]], max_tokens: int) -> list[list[Reply]]:
    """Ask with one client for each share of the prompts; all begin together. Raises ReplyError."""
    begin = threading.Barrier(len(shares))

    def client(share: Sequence[Prompt]) -> list[Reply]:
        begin.wait()
        return [ask(port, prompt, max_tokens) for prompt in share]

    with ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(client, shares))


def _asked_at_once(server: Process, shares: Sequence[Sequence[Prompt]], max_tokens: int) -> list[list[Reply]]:
    """Return the replies of each client. Raises ReplyError, StartupError if the server has ended."""
    try:
        return ask_at_once(server.port, shares, max_tokens)
    except ReplyError as error:
        server.check_alive()
        raise ReplyError(f"{server.name}, {len(shares)} clients: {error}") from error


def run_bouts(servers: Sequence[Process], args: argparse.Namespace) -> list[Bout]:
    """Run a bout for each number of clients in each round. Raises ReplyError.

    Each round begins with another server.
    """
    bouts: list[Bout] = []
    prompts = (replace(prompt, more={"cache_prompt": False}) for prompt in endless())
    for turn in range(args.rounds):
        for n in args.clients:
            shares = [list(islice(prompts, args.prompts)) for _ in range(n)]
            order = [(turn + i) % len(servers) for i in range(len(servers))]
            replies = {i: _asked_at_once(servers[i], shares, args.max_tokens) for i in order}
            bouts.append([replies[i] for i in range(len(servers))])
            rates = " | ".join(f"{figures(clients).total_rate:.1f} t/s" for clients in bouts[-1])
            print(f"round {turn + 1}, {n} clients: {rates}", flush=True)
    return bouts


def figures(clients: Sequence[Sequence[Reply]]) -> Figures:
    """Return the speeds of one server, given the replies to each client (at least one)."""
    replies = [reply for client in clients for reply in client]
    rates = [_rate(client) for client in clients]
    gaps = sorted(1000 * (b - a) for reply in replies for a, b in pairwise(reply.pieces))
    firsts = [reply.first_ms for reply in replies]
    return Figures(
        total_rate=_rate(replies),
        slowest=min(rates) / statistics.mean(rates),
        gap_p95=gaps[min(len(gaps) - 1, int(0.95 * len(gaps)))] if gaps else 0.0,
        gap_longest=gaps[-1] if gaps else 0.0,
        first=statistics.median(firsts),
        first_longest=max(firsts),
        n_drafted=sum(reply.n_drafted for reply in replies),
        n_accepted=sum(reply.n_accepted for reply in replies),
    )


def _rate(replies: Sequence[Reply]) -> float:
    seconds = max(reply.ended for reply in replies) - min(reply.asked for reply in replies)
    return sum(reply.n_tokens for reply in replies) / seconds


def bouts_table(names: Sequence[str], bouts: Sequence[Bout]) -> str:
    """Return markdown with a line for each number of clients and server."""
    rows: list[list[str]] = []
    for n in sorted({len(bout[0]) for bout in bouts}):
        some = [bout for bout in bouts if len(bout[0]) == n]
        found = [[figures(clients) for clients in bout] for bout in some]
        equal = [is_equal for bout in some for is_equal in _equal(bout)]
        rows += [
            [str(n), name, *_cells(i, found), f"{sum(equal)} of {len(equal)}"] for i, name in enumerate(names)
        ]
    return report.table(_BOUTS, rows, n_words=2)


def _equal(bout: Bout) -> list[bool]:
    """Return, for each prompt, True if all servers gave the same text."""
    texts = [[reply.text for client in clients for reply in client] for clients in bout]
    return [len(set(of_one_prompt)) == 1 for of_one_prompt in zip(*texts, strict=True)]


def _cells(i: int, bouts: Sequence[Sequence[Figures]]) -> list[str]:
    """Return the cells of server i: medians over rounds, except `worst` and `longest`.

    Ratios are to the first server's rate.
    """
    own = [bout[i] for bout in bouts]
    return [
        f"{statistics.median(f.total_rate for f in own):.1f}",
        f"{statistics.median(bout[i].total_rate / bout[0].total_rate for bout in bouts):.2f}",
        f"{statistics.median(f.slowest for f in own):.2f}",
        f"{min(f.slowest for f in own):.2f}",
        f"{statistics.median(f.gap_p95 for f in own):.0f}",
        f"{max(f.gap_longest for f in own):.0f}",
        f"{statistics.median(f.first for f in own):.0f}",
        f"{max(f.first_longest for f in own):.0f}",
        report.accepted(sum(f.n_accepted for f in own), sum(f.n_drafted for f in own)),
    ]
