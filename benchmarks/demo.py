"""See drafting pay, on a machine without a large model: what `make demo` runs.

Two servers on the bundled target at the cost of a 400M-parameter BF16 model, without and with drafts, answer
prompts in turn; then the one that drafts stays. Needs what duo needs, and about a minute on two cores.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import inflate, program, report
from benchmarks.contest import Heat, Standing, run, standings, warm_up
from benchmarks.processes import Command, Options, Process, duo
from benchmarks.prompts import PYTHON, load
from server.flags import n_cores

WIDTH = 100  # columns of a sentence at most
ASKED_WIDTH = 52  # columns of a prompt
TARGET = "the bundled one of 28M"
NOTE = (
    "Demonstration: the bundled 28M-parameter model, inflated with weights that do nothing to the cost of a "
    "400M-parameter BF16 model. The text is that of the small model, the time that of the large one."
)


def commands(model: Path, draft_max: int) -> tuple[Command, Command]:
    """Without drafts, and with the draft model where duo up puts it: in the lead on a machine with few cores,
    in a process of its own on others. The lead gets every core in both."""
    common: Options = {"model": model, "alias": "duo-tiny-inflated", "note": NOTE, "threads": n_cores()}
    return (
        Command("without drafter", duo("up", drafters=0, draft_max=0, **common)),
        Command("with drafter", duo("up", drafters=1, draft_max=draft_max, **common), drafts=True),
    )


def demonstrate(args: argparse.Namespace) -> None:
    """Raises DuoError, OSError."""
    plain, drafted = commands(inflate.bundled_400m(), args.draft_max)
    with ExitStack() as stack:
        print(f"1. Two servers load a model of 400M parameters (its text is that of {TARGET}).", flush=True)
        first = stack.enter_context(Process(plain))
        second = stack.enter_context(Process(drafted, None if args.measure_only else args.port))
        first.wait_ready()
        second.wait_ready()
        warm_up([first, second])
        prompts = load(args.prompts, PYTHON)
        print(f"2. Both answer {len(prompts)} prompts in turn.\n")
        print(f"{'':{ASKED_WIDTH}}          tokens per second")
        print(f"{'':{ASKED_WIDTH}} tokens  unaided  guessed  faster", flush=True)
        heats = run([first, second], prompts, args.max_tokens, lambda heat: print(_line(heat), flush=True))
        print("\n" + summary(standings([first.name, second.name], heats)))
        first.stop()
        if not args.measure_only:
            print(
                f"\n3. The one with guesses stays: http://127.0.0.1:{second.port} (Ctrl-C ends it)",
                flush=True,
            )
            second.wait()


def _line(heat: Heat) -> str:
    asked = textwrap.shorten(heat.prompt.messages[-1]["content"], ASKED_WIDTH, placeholder="…")
    plain, drafted = (reply.server_rate for reply in heat.replies)
    times = f"{drafted / plain:.1f} x" if plain and drafted else "-"
    rates = f"{report.number(plain):>8} {report.number(drafted):>8} {times:>7}"
    return f"{asked:{ASKED_WIDTH}} {heat.replies[0].n_tokens:6} {rates}"


def summary(table: Sequence[Standing]) -> str:
    """What was measured, in sentences. table: without guesses, and with."""
    plain, drafted = table
    before, after = plain.total_rate or 0.0, drafted.total_rate or 0.0
    share = 100 * drafted.n_accepted / max(1, drafted.n_drafted)
    lines = [
        f"In all {before:.0f} tokens per second unaided, {after:.0f} with guesses: "
        f"{after / before if before else 0:.1f} times as fast.",
        "A draft model of 5M parameters, and lookups in what was said, guessed "
        f"{drafted.n_drafted} tokens. The large model checked several in one step and kept "
        f"{drafted.n_accepted} ({share:.0f} %): those that it would have said anyway.",
    ]
    if drafted.n_equal < drafted.n_heats:
        lines.append(
            f"{drafted.n_equal} of {drafted.n_heats} texts are equal. In the others two tokens were about "
            "equally likely, and rounding decided: see How exact in the README."
        )
    return "\n".join(textwrap.fill(line, WIDTH) for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description="See drafting pay.")
    add = parser.add_argument
    add("--prompts", type=int, default=8, help="how many prompts to ask")
    add("--max-tokens", type=int, default=160, help="longest reply")
    add("--draft-max", type=int, default=16, help="most drafted tokens verified per step")
    add("--port", type=int, default=5555, help="of the server that stays")
    add("--measure-only", action="store_true", help="measure, then stop both servers")
    args = parser.parse_args(argv)
    return program.status_of("demo", lambda: demonstrate(args))


if __name__ == "__main__":
    sys.exit(main())
