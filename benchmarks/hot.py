"""Where a lead's engine spends its time: `python -m benchmarks.hot [--model M --draft-model D]`.

A real `duo up`, asked prompt by prompt, with its engine thread under cProfile: milliseconds per step by
function, llama.cpp's decode among them. The profiler makes small functions look larger than they are;
benchmarks.overhead has what Python takes without it.
"""

from __future__ import annotations

import argparse
import marshal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import report
from benchmarks.client import Reply, ask
from benchmarks.processes import Command, Process, duo
from benchmarks.prompts import load
from drafters.settings import BUNDLED_MODEL as BUNDLED_DRAFT
from server.errors import DuoError
from server.flags import n_cores
from server.settings import BUNDLED_MODEL

STEP = ("building.py", "build")  # once in every step that decodes
WAITING = ("get", "get_nowait", "wait", "acquire")  # for requests, not of a step

Function = tuple[str, int, str]  # file, line, name
Entry = tuple[int, int, float, float, Mapping[Function, object]]  # calls, all calls, own s, s in all, callers


@dataclass(frozen=True, slots=True)
class Line:
    """Of one function, per step: its own microseconds, how often it was called, share of all own time."""

    function: str
    own_us: float
    calls: float
    share: float


def hottest(stats: Mapping[Function, Entry], n: int) -> tuple[int, list[Line]]:
    """How many steps there were, and the n functions with the most own time. Pure."""
    n_steps = sum(e[0] for (file, _, name), e in stats.items() if (Path(file).name, name) == STEP)
    own = {f: e for f, e in stats.items() if not any(word in f[2] for word in WAITING)}
    total = sum(entry[2] for entry in own.values())
    ranked = sorted(own.items(), key=lambda item: -item[1][2])[:n]
    per = max(n_steps, 1)
    return n_steps, [Line(_name(f), 1e6 * e[2] / per, e[1] / per, e[2] / total) for f, e in ranked]


def _name(function: Function) -> str:
    file, line, name = function
    return name if line == 0 else f"{Path(file).parent.name}/{Path(file).name}:{line} {name}"


def table(n_steps: int, lines: Sequence[Line]) -> str:
    """Markdown."""
    rows = [f"{n_steps} steps.", "", "| function | own µs a step | calls a step | share |"]
    rows.append("| --- | ---: | ---: | ---: |")
    rows += [f"| `{x.function}` | {x.own_us:.1f} | {x.calls:.1f} | {100 * x.share:.1f} % |" for x in lines]
    return "\n".join(rows)


def measure(args: argparse.Namespace) -> str:
    """Run it; returns markdown. Raises DuoError."""
    visible = () if args.device is None else ("env", f"CUDA_VISIBLE_DEVICES={args.device}")
    flags = ("--model", str(args.model), "--draft-model", str(args.draft_model), "--parallel", "1")
    flags += ("--threads", str(args.threads), "--ctx-size", "4096", *args.duo_flags)
    if args.draft_device is not None:
        flags += ("--draft-devices", str(args.draft_device))
    with tempfile.TemporaryDirectory(prefix="duo-profile-") as directory:
        path = Path(directory) / "engine.prof"
        with Process(Command("duo", (*visible, *duo("up", *flags, "--profile", str(path))))) as server:
            server.wait_drafting()
            replies = [ask(server.port, prompt, args.max_tokens) for prompt in load(args.prompts)]
        stats = marshal.loads(path.read_bytes())
    return f"{_replies(replies)} {table(*hottest(stats, args.top))}"


def _replies(replies: Sequence[Reply]) -> str:
    n_tokens, drafted = sum(r.n_tokens for r in replies), sum(r.n_drafted for r in replies)
    return f"{n_tokens} tokens, {sum(r.n_accepted for r in replies)} of {drafted} drafts accepted;"


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hot", description="Profile of a lead.")
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="GGUF file (default: bundled)")
    parser.add_argument("--draft-model", type=Path, default=BUNDLED_DRAFT, help="likewise, of the drafter")
    parser.add_argument("--device", type=int, help="number of the CUDA device of the lead's model")
    parser.add_argument("--draft-device", type=int, help="likewise, of the drafter's model")
    parser.add_argument("--threads", type=int, default=n_cores(), help="of the lead's model")
    parser.add_argument("--duo-flags", type=str.split, default=[], help="more flags for duo up")
    parser.add_argument("--prompts", type=int, default=12, help="how many different prompts")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest reply")
    parser.add_argument("--top", type=int, default=25, help="how many functions to show")
    parser.add_argument("--append", type=Path, help="append the result to this markdown file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    args = _flags().parse_args(arguments)
    try:
        parts = [f"{report.model_line(args.model)}; {report.model_line(args.draft_model)}.", measure(args)]
    except DuoError as error:
        print(f"hot: {error.message}", file=sys.stderr)
        return 1
    report.publish(report.section("where steps go", "benchmarks.hot", arguments, parts), args.append)
    return 0


if __name__ == "__main__":
    sys.exit(main())
