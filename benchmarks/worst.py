"""A lead whose drafter is dead, lying, lagging or flapping, beside one without: `python -m benchmarks.worst`.

Everything on this machine, request by request in turn, one run: what remains of the speed without drafts when
drafters are as bad as they can be. Drafters of the leads that are not asked have nothing to do meanwhile.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks import live, report, texts
from benchmarks.contest import run, standings
from benchmarks.crashes import Crash, Crew
from benchmarks.processes import Command, Process, duo, idle_cpu
from benchmarks.prompts import load
from drafters.settings import BUNDLED_MODEL as BUNDLED_DRAFT
from server.embedded import EmbeddedServer
from server.errors import DuoError
from server.flags import n_cores
from server.llama.llamacpp import LlamaBackend, LlamaOptions

WARM_UP_TOKENS = 8
FLAPS = tuple(Crash(3.0 * i + 1.0, 1.0) for i in range(400))
FAULTS = ("dead", "lying", "lagging", "flapping")


def leads(args: argparse.Namespace, redis_url: str) -> list[Command]:
    """Without drafts first, then one lead for each fault in a pool of its own."""
    common = ("--model", str(args.model), "--threads", str(args.threads), "--ctx-size", "4096")
    common += ("--parallel", "1")
    plain = Command("no drafts", duo("serve", *common, "--draft-max", "0"))
    meet = ("--redis", redis_url, "--pool")
    return [plain, *(Command(fault, duo("serve", *common, *meet, fault)) for fault in args.faults)]


def drafter(args: argparse.Namespace, fault: str, redis_url: str, known: Path) -> Command:
    """The drafter of that lead."""
    flags = ("--redis", redis_url, "--pool", fault, "--name", fault)
    if fault == "lying":
        flags += ("--kind", "replay", "--texts", str(known), "--accept", "0", "--td-ms", "1")
        flags += ("--vocab-from", str(args.model))
    else:
        flags += ("--model", str(args.draft_model))
    if fault == "lagging":
        flags += ("--latency-ms", "300")
    return Command(f"drafter {fault}", (sys.executable, "-m", "drafters", *flags))


def measure(args: argparse.Namespace) -> str:
    """Run it all; returns markdown. Raises DuoError."""
    prompts = load(args.prompts)
    with ExitStack() as stack:
        known = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duo-texts-"))) / "texts.jsonl"
        with closing(LlamaBackend(LlamaOptions(args.model, 4096, 1, n_threads=args.threads))) as backend:
            texts.save(texts.record(backend, prompts, args.max_tokens), known)
        redis = stack.enter_context(EmbeddedServer())
        servers = [stack.enter_context(Process(command)) for command in leads(args, redis.url)]
        for server in servers:
            server.wait_ready()
        run(servers, load(1), WARM_UP_TOKENS)
        for server in servers[1:]:
            one = drafter(args, server.name, redis.url, known)
            if server.name == "dead":
                process = stack.enter_context(Process(one))
                server.wait_ready(n_drafters=1)
                os.kill(process.pid, signal.SIGSTOP)  # present for a while, and silent
                stack.callback(os.kill, process.pid, signal.SIGCONT)
            else:
                crashes = FLAPS if server.name == "flapping" else ()
                stack.enter_context(Crew([one], crashes, _counter(server)))
        idle = idle_cpu(servers, 3.0)
        heats = run(
            servers, prompts * args.rounds, args.max_tokens, lambda heat: print(report.heat_line(heat))
        )
        return report.standings_table(standings([server.name for server in servers], heats), idle)


def _counter(server: Process) -> Callable[[], int]:
    def count() -> int:
        return len(server.health().get("drafters", []))

    return count


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worst", description="Bad drafters.")
    parser.add_argument("--model", type=Path, help="GGUF file (default: bundled, inflated to 400M)")
    parser.add_argument("--draft-model", type=Path, default=BUNDLED_DRAFT, help="likewise, of the drafters")
    parser.add_argument("--threads", type=int, default=n_cores(), help="of the leads' models")
    parser.add_argument("--faults", type=lambda text: text.split(","), default=list(FAULTS))
    parser.add_argument("--prompts", type=int, default=8, help="how many different prompts")
    parser.add_argument("--rounds", type=int, default=1, help="how often each prompt is asked")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest reply")
    report.add_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    args = _flags().parse_args(arguments)
    try:
        args.model = args.model or live.inflated_model()
        what = f"{report.model_line(args.model)}; {args.threads} threads; temperature 0. Ratios are medians."
        parts = [what, measure(args)]
        report.publish(report.section("bad drafters", "benchmarks.worst", arguments, parts), args.append)
    except DuoError as error:
        print(f"worst: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
