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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks import program, report
from benchmarks.client import ask
from benchmarks.processes import Command, Process, duo, options_of
from benchmarks.prompts import load

STEP = ("building.py", "build")  # called once in every step that decodes
WAITING = ("get", "get_nowait", "wait", "acquire")  # for requests, not part of a step

Function: TypeAlias = tuple[str, int, str]  # file, line, name
Entry: TypeAlias = tuple[
    int, int, float, float, Mapping[Function, object]
]  # calls, all calls, own s, s in all, callers


@dataclass(frozen=True, slots=True)
class Line:
    """One function, per step: its own microseconds, its calls, and its share of all own time."""

    function: str
    own_us: float
    calls: float
    share: float


def hottest(stats: Mapping[Function, Entry], n: int) -> tuple[int, list[Line]]:
    """The number of steps, and the n functions with the most own time. Pure."""
    n_steps = sum(e[0] for (file, _, name), e in stats.items() if (Path(file).name, name) == STEP)
    own = {f: e for f, e in stats.items() if not any(word in f[2] for word in WAITING)}
    return n_steps, ranked(own, n_steps)[:n]


def ranked(stats: Mapping[Function, Entry], n_steps: int) -> list[Line]:
    """All functions, those with the most own time first. Pure."""
    total, per = sum(entry[2] for entry in stats.values()), max(n_steps, 1)
    order = sorted(stats.items(), key=lambda item: -item[1][2])
    return [Line(_name(f), 1e6 * e[2] / per, e[1] / per, e[2] / total) for f, e in order]


def _name(function: Function) -> str:
    file, line, name = function
    return name if line == 0 else f"{Path(file).parent.name}/{Path(file).name}:{line} {name}"


def table(lines: Sequence[Line], unit: str = "step") -> str:
    """Markdown."""
    heads = ("function", f"own µs a {unit}", f"calls a {unit}", "share")
    rows = [(f"`{x.function}`", f"{x.own_us:.1f}", f"{x.calls:.1f}", f"{100 * x.share:.1f} %") for x in lines]
    return report.table(heads, rows)


def measure(args: argparse.Namespace) -> program.Result:
    """Raises DuoError."""
    options = options_of(args, "device", "model", "draft_model", "threads", draft_devices=args.draft_device)
    options |= {"parallel": 1, "ctx_size": 4096}
    with tempfile.TemporaryDirectory(prefix="duo-profile-") as directory:
        path = Path(directory) / "engine.prof"
        command = duo("up", *args.duo_flags, profile=path, **options)
        with Process(Command("duo", command, drafts=True)) as server:
            server.wait_ready()
            replies = [ask(server.port, prompt, args.max_tokens) for prompt in load(args.prompts)]
        n_steps, lines = hottest(marshal.loads(path.read_bytes()), args.top)
    accepted = report.accepted(sum(r.n_accepted for r in replies), sum(r.n_drafted for r in replies))
    what = f"{sum(r.n_tokens for r in replies)} tokens, {accepted} drafts accepted; {n_steps} steps."
    models = f"{report.model_line(args.model)}; {report.model_line(args.draft_model)}."
    return "where steps go", [models, what, table(lines)]


def _parser() -> argparse.ArgumentParser:
    shared = (
        "model",
        "draft-model",
        "device",
        "draft-device",
        "threads",
        "duo-flags",
        "prompts",
        "max-tokens",
    )
    parser = program.make_parser("hot", "Profile of a lead's engine.", *shared)
    parser.add_argument("--top", type=int, default=25, help="how many functions to show")
    return parser


main = program.main(_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
