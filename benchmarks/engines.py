"""Compare a model drafter with an engine drafter: `python -m benchmarks.engines --llama-server PATH`.

Two leads with the same target answer each prompt in turn. The drafter of one lead runs the draft model. The
drafter of the other asks llama-server, which runs the same file (`duo draft --kind engine`). There are no
other guesses, such as lookups, and all guesses are verified.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import program, report
from benchmarks.client import Reply, ask
from benchmarks.processes import Command, Process, drafter, duo, flags, llama_server, start
from benchmarks.prompts import load
from server.errors import StartupError
from server.local.embedded import EmbeddedServer

ONLY_DRAFTERS = flags(no_gate=True, no_lookup=True, no_embeddings=True)


def measure(args: argparse.Namespace) -> program.Result:
    """Ask both leads, and return the section. Raises DuoError."""
    target: Path = args.model
    draft: Path = args.draft_model
    if args.llama_server is None:
        raise StartupError("give the engine with --llama-server: its binary, or a Python with xllamacpp")
    kinds = ("model", "engine")
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedServer()).url
        line = llama_server(
            program.binary(args.llama_server),
            device=args.draft_device,
            model=draft,
            ctx_size=4096,
            threads=args.threads,
        )
        [engine] = start(stack, [Command("llama-server", line)])
        leads = [_lead(kind, target, redis, args) for kind in kinds]
        servers = start(stack, leads)
        for kind, server in zip(kinds, servers, strict=True):
            stack.enter_context(Process(_drafter(kind, draft, redis, engine.port, args)))
            server.wait_ready(1)
            ask(server.port, load(1)[0], 32)  # a first reply waits for the drafter
        replies: list[list[Reply]] = [[] for _ in servers]
        for _ in range(args.rounds):
            for prompt in load(args.prompts):
                for server, found in zip(servers, replies, strict=True):
                    found.append(ask(server.port, prompt, args.max_tokens))
    rows = [_row(kind, found, replies[0]) for kind, found in zip(kinds, replies, strict=True)]
    heads = ["drafter", "accepted a second", "by the model's", "right of guesses", "tokens a second"]
    what = f"{report.model_line(target)} by {report.model_line(draft)}; {len(replies[0])} replies each."
    return "an engine that drafts", [what, report.table(heads, rows, n_words=1)]


def _lead(kind: str, target: Path, redis: str, args: argparse.Namespace) -> Command:
    line = duo("serve", *ONLY_DRAFTERS, *args.duo_flags, device=args.device, redis=redis, pool=kind)
    return Command(kind, (*line, *flags(model=target, threads=args.threads)))


def _drafter(kind: str, draft: Path, redis: str, port: int, args: argparse.Namespace) -> Command:
    if kind == "model":
        options = {"model": draft, "threads": args.threads}
        return drafter(kind, device=args.draft_device, redis=redis, pool=kind, **options)
    url = f"http://127.0.0.1:{port}"
    return drafter(kind, kind=kind, redis=redis, pool=kind, url=url, vocab_from=draft)


def _row(kind: str, replies: Sequence[Reply], first: Sequence[Reply]) -> list[str]:
    n_drafted = sum(reply.n_drafted for reply in replies)
    n_accepted = sum(reply.n_accepted for reply in replies)
    share = _accepted_rate(replies) / max(1e-9, _accepted_rate(first))
    rate = sum(reply.n_tokens - 1 for reply in replies) / _seconds(replies)
    cells = [f"{_accepted_rate(replies):.1f}", f"{share:.2f}", f"{n_accepted} of {n_drafted}", f"{rate:.1f}"]
    return [kind, *cells]


def _accepted_rate(replies: Sequence[Reply]) -> float:
    return sum(reply.n_accepted for reply in replies) / _seconds(replies)


def _seconds(replies: Sequence[Reply]) -> float:
    """Return the seconds from first piece to end, summed over the replies."""
    return sum(reply.ended - reply.pieces[0] for reply in replies if reply.pieces)


def _parser() -> argparse.ArgumentParser:
    shared = (
        "llama-server",
        "model",
        "draft-model",
        "device",
        "draft-device",
        "threads",
        "prompts",
        "rounds",
    )
    what = "A drafter with a model beside one that asks an engine."
    more = {"prompts": 12, "max_tokens": 100, "threads": 1}
    return program.make_parser("engines", what, *shared, "max-tokens", "duo-flags", **more)


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
