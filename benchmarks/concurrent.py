"""Several clients at once: `python -m benchmarks.concurrent [--clients 1,4]`.

Two leads side by side on one model, without drafts and with. In each round each lead in turn is asked by
k clients at the same time, each of which asks its own prompts one after the other; the other lead has nothing
to do meanwhile. No prompt is asked twice, so that neither a cached prefix nor a text said before helps.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import live, report
from benchmarks.client import Reply, ReplyError, parse
from benchmarks.contest import run as run_heats
from benchmarks.processes import Command, Process, duo
from benchmarks.prompts import Prompt, load
from drafters.settings import BUNDLED_MODEL as BUNDLED_DRAFT
from server.errors import DuoError
from server.flags import n_cores

WARM_UP_TOKENS = 8
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Told:
    """One reply, with the client's clock: when it was asked for, when its pieces of text came, its end."""

    reply: Reply
    asked: float
    pieces: tuple[float, ...]
    ended: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One lead asked by several clients at once. total_rate: tokens of all by the seconds from the first
    request to the last end. slowest: the tokens per second of the slowest client, by the mean of all clients.
    gaps between two pieces of one text, and first texts, are milliseconds."""

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
    """The same prompts, client by client, asked of both leads."""

    n_clients: int
    figures: tuple[Figures, ...]
    n_equal: int
    n_texts: int


# -- asking ----------------------------------------


def tell(port: int, prompt: Prompt, max_tokens: int) -> Told:
    """Ask for a reply at temperature 0. Raises ReplyError."""
    body = {
        "model": "default",
        "messages": prompt.messages,
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    asked = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), kind)
        response = connection.getresponse()
        if response.status != 200:
            raise ReplyError(f"HTTP {response.status}: {response.read(500).decode(errors='replace')}")
        lines = [(time.perf_counter(), line) for line in response]
    except (OSError, http.client.HTTPException) as error:
        raise ReplyError(f"the server on port {port} does not answer: {error}") from error
    finally:
        connection.close()
    return Told(parse(lines, asked), asked, tuple(at for at, line in lines if _has_text(line)), lines[-1][0])


def _has_text(line: bytes) -> bool:
    if not line.startswith(b"data: {"):
        return False
    chunk: dict[str, Any] = json.loads(line[5:])
    return any(choice["delta"].get("content") for choice in chunk.get("choices", ()))


def ask_at_once(port: int, shares: Sequence[Sequence[Prompt]], max_tokens: int) -> list[list[Told]]:
    """A client for each share of the prompts; all begin at the same time. Raises ReplyError."""
    start = threading.Barrier(len(shares))

    def client(share: Sequence[Prompt]) -> list[Told]:
        start.wait()
        return [tell(port, prompt, max_tokens) for prompt in share]

    with ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(client, shares))


# -- figures, pure ----------------------------------------


def figures(clients: Sequence[Sequence[Told]]) -> Figures:
    """Of one lead's replies, client by client, none of which is empty."""
    told = [one for client in clients for one in client]
    rates = [_rate(client) for client in clients]
    gaps = sorted(
        1000 * (later - earlier) for t in told for earlier, later in zip(t.pieces, t.pieces[1:], strict=False)
    )
    firsts = [t.reply.first_ms for t in told]
    return Figures(
        total_rate=_rate(told),
        slowest=min(rates) / statistics.mean(rates),
        gap_p95=gaps[min(len(gaps) - 1, int(0.95 * len(gaps)))] if gaps else 0.0,
        gap_longest=gaps[-1] if gaps else 0.0,
        first=statistics.median(firsts),
        first_longest=max(firsts),
        n_drafted=sum(t.reply.n_drafted for t in told),
        n_accepted=sum(t.reply.n_accepted for t in told),
    )


def _rate(told: Sequence[Told]) -> float:
    seconds = max(t.ended for t in told) - min(t.asked for t in told)
    return sum(t.reply.n_tokens for t in told) / seconds


def table(names: Sequence[str], bouts: Sequence[Bout]) -> str:
    """Markdown: a line for each lead and number of clients."""
    lines = [
        "| clients | lead | t/s in all | ratio | slowest client | worst | gap p95, ms | longest |"
        " first text, ms | longest | drafts accepted | same text |",
        "| ---: | --- |" + " ---: |" * 10,
    ]
    for n in sorted({bout.n_clients for bout in bouts}):
        same = [bout for bout in bouts if bout.n_clients == n]
        equal = f"{sum(b.n_equal for b in same)} of {sum(b.n_texts for b in same)}"
        lines += [f"| {n} | {name} | {_cells(i, same)} | {equal} |" for i, name in enumerate(names)]
    return "\n".join(lines)


def _cells(i: int, bouts: Sequence[Bout]) -> str:
    """Of lead i. Medians over rounds, but for worst and longest; ratios are medians to the first lead's."""
    own = [bout.figures[i] for bout in bouts]
    ratio = statistics.median(b.figures[i].total_rate / b.figures[0].total_rate for b in bouts)
    n_drafted = sum(f.n_drafted for f in own)
    accepted = f"{sum(f.n_accepted for f in own)} of {n_drafted}" if n_drafted else "-"
    cells = [
        f"{statistics.median(f.total_rate for f in own):.1f}",
        f"{ratio:.2f}",
        f"{statistics.median(f.slowest for f in own):.2f}",
        f"{min(f.slowest for f in own):.2f}",
        f"{statistics.median(f.gap_p95 for f in own):.0f}",
        f"{max(f.gap_longest for f in own):.0f}",
        f"{statistics.median(f.first for f in own):.0f}",
        f"{max(f.first_longest for f in own):.0f}",
        accepted,
    ]
    return " | ".join(cells)


# -- the program ----------------------------------------


def leads(args: argparse.Namespace) -> list[Command]:
    """Without drafts, which all is compared with, and with."""
    common = ("--model", str(args.model), "--threads", str(args.threads))
    common += ("--ctx-size", str(args.ctx_size), "--parallel", str(max(args.clients)))
    return [
        Command("no drafts", duo("serve", *common, "--draft-max", "0")),
        Command("drafts", duo("up", *common, "--draft-model", str(args.draft_model), *args.duo_flags)),
    ]


def measure(servers: Sequence[Process], prompts: Sequence[Prompt], args: argparse.Namespace) -> list[Bout]:
    """args.rounds rounds, each with every number of clients in turn; who is asked first changes. Raises
    ReplyError."""
    fresh = iter(prompts)
    bouts: list[Bout] = []
    for turn in range(args.rounds):
        for n in args.clients:
            shares = [[next(fresh) for _ in range(args.requests)] for _ in range(n)]
            order = [(turn + i) % len(servers) for i in range(len(servers))]
            told = {i: ask_at_once(servers[i].port, shares, args.max_tokens) for i in order}
            bouts.append(bout([told[i] for i in range(len(servers))]))
            rates = " | ".join(f"{f.total_rate:.1f} t/s" for f in bouts[-1].figures)
            print(f"round {turn + 1}, {n} clients: {rates}", flush=True)
    return bouts


def bout(told: Sequence[Sequence[Sequence[Told]]]) -> Bout:
    """Pure. told: by lead and client."""
    texts = [[t.reply.text for client in lead for t in client] for lead in told]
    n_equal = sum(len(set(alike)) == 1 for alike in zip(*texts, strict=True))
    return Bout(len(told[0]), tuple(figures(lead) for lead in told), n_equal, len(texts[0]))


def n_prompts(args: argparse.Namespace) -> int:
    """How many the whole run asks."""
    return args.rounds * args.requests * sum(args.clients)


def compare(args: argparse.Namespace) -> str:
    """Run it all; returns markdown. Raises DuoError."""
    with ExitStack() as stack:
        servers: list[Process] = []
        for command in leads(args):  # one after the other: what a lead measures at its start shall count
            servers.append(stack.enter_context(Process(command)))
            if command.name == "drafts":
                servers[-1].wait_drafting()
            else:
                servers[-1].wait_ready()
        mode = servers[-1].health().get("draft_mode", "unknown")
        warm_up, *prompts = load(n_prompts(args) + 1)
        run_heats(servers, [warm_up], WARM_UP_TOKENS)
        bouts = measure(servers, prompts, args)
    what = (
        f"Draft mode: {mode}. Medians over {args.rounds} rounds; slowest client: its tokens/s, by the mean."
    )
    return f"{what}\n\n{table([server.name for server in servers], bouts)}"


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.concurrent",
        description="Several clients at once, without and with drafts.",
    )
    parser.add_argument("--model", type=Path, help="GGUF file (default: bundled, inflated to 400M)")
    parser.add_argument(
        "--draft-model", type=Path, default=BUNDLED_DRAFT, help="likewise, of the draft model"
    )
    parser.add_argument("--threads", type=int, default=n_cores(), help="of each lead's model")
    parser.add_argument("--ctx-size", type=int, default=8192, help="KV cells of each lead")
    parser.add_argument("--duo-flags", type=str.split, default=[], help="more flags for duo up")
    parser.add_argument("--clients", type=_counts, default=[1, 4], help="at once, such as 1,4: each in turn")
    parser.add_argument("--requests", type=int, default=2, help="prompts of each client in a round")
    parser.add_argument("--rounds", type=int, default=4, help="rounds, each with prompts of its own")
    parser.add_argument("--max-tokens", type=int, default=96, help="longest reply")
    parser.add_argument("--append", type=Path, help="append the result to this markdown file")
    return parser


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise ValueError(text)
    return counts


def _leave(*_: object) -> None:
    raise SystemExit(0)  # through the with blocks, which end the servers


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    parser = _flags()
    args = parser.parse_args(arguments)
    if min(args.rounds, args.requests) < 1:
        parser.error("--rounds and --requests must be at least 1")
    if n_prompts(args) >= len(load()):
        parser.error(f"{n_prompts(args)} prompts and one to warm up, but there are {len(load())} in all")
    try:
        args.model = args.model or live.inflated_model()
        what = f"{report.model_line(args.model)}; {args.threads} threads; temperature 0, {args.requests} "
        what += f"replies of at most {args.max_tokens} tokens for each client and round."
        parts = [what, compare(args)]
        text = report.section("several clients at once", "benchmarks.concurrent", arguments, parts)
        report.publish(text, args.append)
    except (DuoError, OSError) as error:
        print(f"concurrent: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    sys.exit(main())
