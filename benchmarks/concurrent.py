"""Several clients at once: `python -m benchmarks.concurrent [--clients 1,4]`.

Leads on one model: without drafts, with each of --duo-flags, and llama-server if it is given. In each round k
clients ask one lead at a time, each of them its own prompts one after the other; then the next lead. A prompt
that is asked again has another salt, so that in duo neither a cached prefix nor a former reply helps.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

from benchmarks import program, report
from benchmarks.client import Reply, ask
from benchmarks.contest import WARM_UP_TOKENS
from benchmarks.contest import run as run_heats
from benchmarks.inflate import bundled_400m
from benchmarks.processes import Command, Process, duo, llama_server, options_of, start
from benchmarks.prompts import Prompt, endless

_HEADS = (
    "clients | lead | t/s in all | ratio | slowest client | worst | gap p95, ms | longest | first text, ms"
    " | longest | drafts accepted | same text"
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One lead asked by several clients at once. total_rate: tokens of all by the seconds from the first
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


@dataclass(frozen=True, slots=True)
class Bout:
    """The same prompts, client by client, asked of all leads."""

    n_clients: int
    figures: tuple[Figures, ...]
    n_equal: int
    n_texts: int


def ask_at_once(port: int, shares: Sequence[Sequence[Prompt]], max_tokens: int) -> list[list[Reply]]:
    """One client for each share of the prompts; all begin together. Raises ReplyError."""
    begin = threading.Barrier(len(shares))

    def client(share: Sequence[Prompt]) -> list[Reply]:
        begin.wait()
        return [ask(port, prompt, max_tokens) for prompt in share]

    with ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(client, shares))


# -- figures, pure ----------------------------------------


def figures(clients: Sequence[Sequence[Reply]]) -> Figures:
    """Of one lead's replies, at least one for each client."""
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


def bout(replies: Sequence[Sequence[Sequence[Reply]]]) -> Bout:
    """replies: by lead and client."""
    texts = [[reply.text for client in lead for reply in client] for lead in replies]
    n_equal = sum(len(set(of_one_prompt)) == 1 for of_one_prompt in zip(*texts, strict=True))
    return Bout(len(replies[0]), tuple(figures(lead) for lead in replies), n_equal, len(texts[0]))


def table(names: Sequence[str], bouts: Sequence[Bout]) -> str:
    """Markdown: a line for each number of clients and lead."""
    rows: list[list[str]] = []
    for n in sorted({bout.n_clients for bout in bouts}):
        some = [bout for bout in bouts if bout.n_clients == n]
        equal = f"{sum(b.n_equal for b in some)} of {sum(b.n_texts for b in some)}"
        rows += [[str(n), name, *_cells(i, some), equal] for i, name in enumerate(names)]
    return report.table(_HEADS, rows, n_words=2)


def _cells(i: int, bouts: Sequence[Bout]) -> list[str]:
    """Of lead i: medians over rounds, except `worst` and `longest`; ratios to the first lead's rate."""
    own = [bout.figures[i] for bout in bouts]
    return [
        f"{median(f.total_rate for f in own):.1f}",
        f"{median(b.figures[i].total_rate / b.figures[0].total_rate for b in bouts):.2f}",
        f"{median(f.slowest for f in own):.2f}",
        f"{min(f.slowest for f in own):.2f}",
        f"{median(f.gap_p95 for f in own):.0f}",
        f"{max(f.gap_longest for f in own):.0f}",
        f"{median(f.first for f in own):.0f}",
        f"{max(f.first_longest for f in own):.0f}",
        report.accepted(sum(f.n_accepted for f in own), sum(f.n_drafted for f in own)),
    ]


# -- the program ----------------------------------------


def leads(args: argparse.Namespace) -> list[Command]:
    """llama-server if it takes part, duo without drafts, and duo with each of --duo-flags. All others are
    compared with the first."""
    size = options_of(args, "model", "threads", "ctx_size", parallel=max(args.clients))
    found = [Command("no drafts", duo("serve", draft_max=0, **size))]
    if args.llama_server:
        found.insert(0, Command("llama-server", llama_server(args.llama_server, **size)))
    settings: list[list[str]] = args.duo_flags or [[]]
    for flags in settings:
        name = report.arguments(["drafts", *flags] if len(settings) > 1 else ["drafts"])
        drafting = duo("up", "--draft-model", str(args.draft_model), *flags, **size)
        found.append(Command(name, drafting, drafts=True))
    return found


def run(servers: Sequence[Process], prompts: Iterator[Prompt], args: argparse.Namespace) -> list[Bout]:
    """Rounds with every number of clients in turn, each asking another lead first. Raises ReplyError."""
    bouts: list[Bout] = []
    for turn in range(args.rounds):
        for n in args.clients:
            shares = [[next(prompts) for _ in range(args.requests)] for _ in range(n)]
            order = [(turn + i) % len(servers) for i in range(len(servers))]
            replies = {i: ask_at_once(servers[i].port, shares, args.max_tokens) for i in order}
            bouts.append(bout([replies[i] for i in range(len(servers))]))
            rates = " | ".join(f"{f.total_rate:.1f} t/s" for f in bouts[-1].figures)
            print(f"round {turn + 1}, {n} clients: {rates}", flush=True)
    return bouts


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    args.model = args.model or bundled_400m()
    if args.llama_server:
        args.llama_server = program.binary(args.llama_server)
    with ExitStack() as stack:
        servers = start(stack, leads(args))
        modes = [str(server.health().get("draft_mode", "unknown")) for server in servers if server.drafts]
        prompts = endless()
        run_heats(servers, [next(prompts)], WARM_UP_TOKENS)
        bouts = run(servers, prompts, args)
    what = (
        f"{report.model_line(args.model)}; {args.threads} threads; temperature 0, {args.requests} "
        f"replies of at most {args.max_tokens} tokens for each client and round. "
        f"Draft mode: {', '.join(modes)}. Medians over "
        f"{args.rounds} rounds; slowest client: its tokens/s, by the mean."
    )
    return "several clients at once", [what, table([server.name for server in servers], bouts)]


def _parser() -> argparse.ArgumentParser:
    shared = ("llama-server", "inflated", "draft-model", "threads", "rounds", "max-tokens")
    what = "Several clients at once, without and with drafts."
    parser = program.make_parser("concurrent", what, *shared, rounds=4, max_tokens=96)
    add = parser.add_argument
    several = "more flags of a duo with drafts; a lead for each time that this is given"
    add("--duo-flags", type=str.split, action="append", help=several)
    add("--ctx-size", type=int, default=8192, help="KV cells of each lead")
    add("--clients", type=program.numbers, default=[1, 4], help="at once, such as 1,4: each in turn")
    add("--requests", type=int, default=2, help="prompts of each client in a round")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
