"""Where a lead's engine spends its time: `python -m benchmarks.hot [--model M --draft-model D]`.

A real `duo up`, asked prompt by prompt, with its engine thread under cProfile: microseconds per step by
function, llama.cpp's decode among them. The profiler makes small functions look larger than they are;
benchmarks.overhead measures Python without it.
"""

from __future__ import annotations

import argparse
import marshal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from benchmarks import program, report
from benchmarks.client import ask
from benchmarks.processes import Command, Process, duo, options_of
from benchmarks.prompts import PYTHON, load

STEP = ("building.py", "build")  # called once in every step that decodes
WAITING = ("get", "get_nowait", "wait", "acquire")  # for requests, not part of a step

Function: TypeAlias = tuple[str, int, str]  # file, line, name
# Calls, all calls, own seconds, seconds in all, callers
Entry: TypeAlias = tuple[int, int, float, float, Mapping[Function, object]]


def hottest(stats: Mapping[Function, Entry], n: int) -> tuple[int, str]:
    """The number of steps; as markdown the n functions with the most own time, per step. Pure."""
    n_steps = sum(e[0] for (file, _, name), e in stats.items() if (Path(file).name, name) == STEP)
    own = {f: e for f, e in stats.items() if not any(word in f[2] for word in WAITING)}
    total, per = sum(entry[2] for entry in own.values()), max(n_steps, 1)
    rows = [
        (f"`{_name(f)}`", f"{1e6 * e[2] / per:.1f}", f"{e[1] / per:.1f}", f"{100 * e[2] / total:.1f} %")
        for f, e in sorted(own.items(), key=lambda item: -item[1][2])[:n]
    ]
    return n_steps, report.table("function | own µs a step | calls a step | share", rows)


def _name(function: Function) -> str:
    file, line, name = function
    return name if line == 0 else f"{Path(file).parent.name}/{Path(file).name}:{line} {name}"


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    options = options_of(args, "device", "model", "draft_model", "threads", draft_devices=args.draft_device)
    options |= {"parallel": 1, "ctx_size": 4096}
    with tempfile.TemporaryDirectory(prefix="duo-profile-") as directory:
        path = Path(directory) / "engine.prof"
        command = duo("up", *args.duo_flags, profile=path, **options)
        with Process(Command("duo", command, drafts=True)) as server:
            server.wait_ready()
            replies = [ask(server.port, prompt, args.max_tokens) for prompt in load(args.prompts, PYTHON)]
        n_steps, table = hottest(marshal.loads(path.read_bytes()), args.top)
    accepted = report.accepted(sum(r.n_accepted for r in replies), sum(r.n_drafted for r in replies))
    what = f"{sum(r.n_tokens for r in replies)} tokens, {accepted} drafts accepted; {n_steps} steps."
    models = f"{report.model_line(args.model)}; {report.model_line(args.draft_model)}."
    return "where steps go", [models, what, table]


def _parser() -> argparse.ArgumentParser:
    shared = ("model", "draft-model", "device", "draft-device", "threads", "duo-flags")
    parser = program.make_parser("hot", "Profile of a lead's engine.", *shared, "prompts", "max-tokens")
    parser.add_argument("--top", type=int, default=25, help="how many functions to show")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
