"""A lead whose drafter is dead, lying, lagging or flapping, beside one without: `python -m benchmarks.worst`.

Everything on this machine, request by request in turn, one run: what remains of the speed without drafts when
drafters are as bad as they can be. Drafters of the leads that are not asked have nothing to do meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import faults, live, report
from benchmarks.contest import run, standings
from benchmarks.processes import Command, Process, duo, idle_cpu
from benchmarks.prompts import load
from drafters.settings import BUNDLED_MODEL as BUNDLED_DRAFT
from server.errors import DuoError
from server.flags import n_cores

WARM_UP_TOKENS = 8


def measure(args: argparse.Namespace) -> str:
    """Run it all; returns markdown. Raises DuoError."""
    prompts = load(args.prompts)
    with ExitStack() as stack:
        scene = faults.Scene(args.model, args.draft_model, args.threads, args.faults)
        bad, join = faults.enter(stack, scene, prompts, args.max_tokens)
        flags = ("--threads", str(args.threads), "--ctx-size", str(faults.CTX_SIZE), "--parallel", "1")
        plain = duo("serve", "--model", str(args.model), *flags, "--draft-max", "0")
        servers = [stack.enter_context(Process(Command("duo, no drafts", plain))), *bad]
        servers[0].wait_ready()
        run(servers, load(1), WARM_UP_TOKENS)
        join()
        idle = idle_cpu(servers, 3.0)
        heats = run(
            servers, prompts * args.rounds, args.max_tokens, lambda heat: print(report.heat_line(heat))
        )
        return report.standings_table(standings([server.name for server in servers], heats), idle)


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worst", description="Bad drafters.")
    parser.add_argument("--model", type=Path, help="GGUF file (default: bundled, inflated to 400M)")
    parser.add_argument("--draft-model", type=Path, default=BUNDLED_DRAFT, help="likewise, of the drafters")
    parser.add_argument("--threads", type=int, default=n_cores(), help="of the leads' models")
    parser.add_argument("--faults", type=lambda text: text.split(","), default=list(faults.FAULTS))
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
