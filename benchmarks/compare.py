"""duo beside llama-server: `python -m benchmarks.compare --llama-server PATH [--sweep 3,7 --p-min 0,0.75]`.

Same GGUF files, same threads, same prompts, request by request in turn, one run. All servers run from
beginning to end; that the idle ones take no CPU is measured and shown. With --sweep both also run with the
draft model: llama-server synchronously, once for each number of drafted tokens and each --p-min; duo once, in
the mode and the widths that it chooses by itself. With --faults leads with bad drafters join in, as in
benchmarks.worst.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import faults
from benchmarks.contest import Heat, Standing, run, standings
from benchmarks.processes import Command, Process, duo, idle_cpu
from benchmarks.prompts import load
from benchmarks.report import command_line, heat_line, machine, model_line, standings_table
from drafters.settings import BUNDLED_MODEL as BUNDLED_DRAFT
from server.errors import DuoError, StartupError
from server.flags import n_cores
from server.settings import BUNDLED_MODEL

IDLE_S = 3.0
DRAFTING = "duo, drafts"
WARM_UP_TOKENS = 8


def commands(args: argparse.Namespace) -> list[Command]:
    """llama-server without drafts comes first: all others are compared with it."""
    drafter = ("--draft-model", str(args.draft_model))
    if args.draft_threads:
        drafter += ("--draft-threads", str(args.draft_threads))
    if args.draft_device not in (None, args.device):
        drafter += ("--draft-devices", str(args.draft_device))
    found = [
        Command("llama-server", _llama(args)),
        Command("duo", _duo(args, "serve", "--draft-max", "0")),
    ]
    found += [_synchronous(args, n, p_min) for n in args.sweep for p_min in args.p_min]
    if args.sweep:
        found.append(Command(DRAFTING, _duo(args, "up", *drafter, *args.duo_flags)))
    return found


def _synchronous(args: argparse.Namespace, n: int, p_min: float) -> Command:
    """llama-server with its draft model."""
    flags = ("-md", str(args.draft_model), "--spec-type", "draft-simple")
    flags += ("--spec-draft-n-max", str(n), "--spec-draft-threads", str(args.draft_threads or 1))
    flags += ("--spec-draft-p-min", f"{p_min:g}")
    if args.draft_device is not None:
        flags += ("-devd", f"CUDA{args.draft_device}", "-ngld", "99")
    return Command(f"llama-server, draft {n}, p_min {p_min:g}", _llama(args) + flags)


def _llama(args: argparse.Namespace) -> tuple[str, ...]:
    size = ("-c", str(args.ctx_size), "-np", "1", "-t", str(args.threads))
    place = ("--host", "127.0.0.1", "--port", "{port}", "--offline")
    if args.device is not None:
        place += ("-dev", f"CUDA{args.device}", "-ngl", "99")
    return (str(args.llama_server), "-m", str(args.model), *size, *place)


def _duo(args: argparse.Namespace, command: str, *flags: str) -> tuple[str, ...]:
    size = ("--ctx-size", str(args.ctx_size), "--parallel", "1", "--threads", str(args.threads))
    visible = () if args.device is None else ("env", f"CUDA_VISIBLE_DEVICES={args.device}")
    return (*visible, *duo(command, "--model", str(args.model), *size, *flags))


def compare(args: argparse.Namespace) -> str:
    """Run it all; returns the result as markdown. Raises DuoError."""
    with ExitStack() as stack:
        servers: list[Process] = []
        for command in commands(args):  # one after the other: what a server measures at its start shall count
            servers.append(stack.enter_context(Process(command)))
            if command.name == DRAFTING:
                servers[-1].wait_drafting()
            else:
                servers[-1].wait_ready()
        scene = faults.Scene(args.model, args.draft_model, args.threads, args.faults)
        bad, join = faults.enter(stack, scene, load(args.prompts), args.max_tokens)
        servers += bad
        run(servers, load(1), WARM_UP_TOKENS)
        join()
        idle = idle_cpu(servers, IDLE_S)
        prompts = load(args.prompts) * args.rounds
        failed: list[str] = []
        heats = run(
            servers, prompts, args.max_tokens, lambda heat: print(heat_line(heat), flush=True), failed
        )
        table = standings([server.name for server in servers], heats)
        parts = [standings_table(table, idle)]
        if any(standing.name == DRAFTING for standing in table):
            parts.append(against_best(table, heats))
        parts += [f"Prompt left out: {failure}." for failure in failed]
        return "\n\n".join([*parts, *_python_shares(servers)])


def against_best(table: Sequence[Standing], heats: Sequence[Heat]) -> str:
    """duo with drafts beside the best of llama-server's settings, the one with the highest total rate."""
    best = max((s for s in table if s.name.startswith("llama")), key=lambda s: s.total_rate or 0.0)
    names = [standing.name for standing in table]
    pairs = [Heat(h.prompt, [h.replies[names.index(n)] for n in (best.name, DRAFTING)]) for h in heats]
    ours = standings([best.name, DRAFTING], pairs)[1]
    total = (ours.total_rate or 0.0) / (best.total_rate or 1.0)
    return (
        f"{DRAFTING}, against {best.name}, the best of llama-server: {total:.2f} times its tokens in all per "
        f"second in all; {ours.client_ratio or 0:.2f} times in the median of prompts."
    )


def _python_shares(servers: Sequence[Process]) -> list[str]:
    """What duo's own part of a step costs, where it tells."""
    shares: list[str] = []
    for server in servers:
        engine = server.health().get("engine")
        share = engine.get("step_python_us") if isinstance(engine, dict) else None  # pyright: ignore[reportUnknownVariableType]
        if isinstance(share, int | float):
            shares.append(f"{server.name}: {share:.0f} µs of Python in a one-session step (median).")
    return shares


def section(args: argparse.Namespace, argv: Sequence[str], result: str) -> str:
    """Markdown that can be appended to a file of results."""
    what = (
        f"{model_line(args.model)}; {args.threads} threads; temperature 0, at most {args.max_tokens} tokens"
    )
    lines = [
        f"## {datetime.date.today()}: {args.model.stem}, beside llama-server",
        f"{what}, {args.prompts} prompts x {args.rounds}. Ratios are medians, to the first row.",
        f"On: {machine()}",
        f"`{command_line('benchmarks.compare', argv)}`",
        result,
    ]
    if args.sweep:
        lines[1] += f" Draft: {model_line(args.draft_model)}."
    return "\n\n".join(lines) + "\n"


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description="duo beside llama-server, request by request in turn.",
    )
    parser.add_argument("--llama-server", type=Path, required=True, help="the llama-server binary")
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="the GGUF file (default: bundled)")
    parser.add_argument(
        "--draft-model", type=Path, default=BUNDLED_DRAFT, help="likewise, of the draft model"
    )
    parser.add_argument("--threads", type=int, default=n_cores(), help="of each server's model")
    parser.add_argument("--draft-threads", type=int, default=0, help="of each draft model; 0: its default")
    parser.add_argument("--p-min", type=_shares, default=[0.0], help="of llama-server's drafts: 0,0.75")
    parser.add_argument("--duo-flags", type=str.split, default=[], help="more flags for duo up")
    parser.add_argument("--device", type=int, help="number of the CUDA device of each server's model")
    parser.add_argument("--draft-device", type=int, help="likewise, of each server's draft model")
    parser.add_argument("--ctx-size", type=int, default=4096, help="context of each server")
    parser.add_argument("--sweep", type=_numbers, default=[], help="with drafts, llama-server this many: 3,7")
    parser.add_argument(
        "--faults", type=lambda text: text.split(","), default=[], help="of drafters: dead,lying"
    )
    parser.add_argument("--prompts", type=int, default=12, help="how many different prompts")
    parser.add_argument("--rounds", type=int, default=1, help="how often each prompt is asked")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest reply")
    parser.add_argument("--append", type=Path, help="append the result to this markdown file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    args = _flags().parse_args(arguments)
    try:
        for path in (args.llama_server, args.model, args.draft_model):
            if not path.is_file():
                raise StartupError(f"no file at {path}")
        if not os.access(args.llama_server, os.X_OK):
            raise StartupError(f"{args.llama_server} cannot be executed: --llama-server takes the binary")
        args.llama_server = args.llama_server.resolve()
        text = section(args, arguments, compare(args))
    except DuoError as error:
        print(f"compare: {error.message}", file=sys.stderr)
        return 1
    print(f"\n{text}")
    if args.append:
        with args.append.open("a") as file:
            file.write(f"\n{text}")
    return 0


def _shares(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


if __name__ == "__main__":
    sys.exit(main())
