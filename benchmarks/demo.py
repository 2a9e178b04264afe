"""See drafting pay, on a machine without a large model: what `make demo` runs.

Two servers on the bundled target at the cost of a 400M-parameter BF16 model, without and with drafts, answer
prompts in turn; then the one that drafts stays.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import inflate, program
from benchmarks.contest import print_heat, run, standings, standings_table, warm_up
from benchmarks.processes import Command, Options, Process, duo
from benchmarks.prompts import Prompt, load
from server.flags import n_cores

NOTE = (
    "Demonstration: the bundled 28M-parameter model, inflated with weights that do nothing to the cost of a "
    "400M-parameter BF16 model. The text is that of the small model, the time that of the large one."
)
ASKED = "Illustrate the difference between concurrency and parallelism in Python."
QUESTION = Prompt("demonstration", [{"role": "user", "content": ASKED}])


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
        print("Starting two servers: one without a drafter, one with.", flush=True)
        first = stack.enter_context(Process(plain))
        second = stack.enter_context(Process(drafted, None if args.measure_only else args.port))
        first.wait_ready()
        second.wait_ready()
        warm_up([first, second])
        prompts = [QUESTION, *load(args.prompts - 1)]
        print(f"Asking {len(prompts)} prompts of both in turn …", flush=True)
        heats = run([first, second], prompts, args.max_tokens, print_heat)
        table = standings([first.name, second.name], heats)
        print(standings_table(table, [None, None]))
        print(f"With the drafter {table[1].client_ratio or 0:.2f} times as fast, by the client's clock.")
        first.stop()
        if not args.measure_only:
            print(f"Chat with it: http://127.0.0.1:{second.port} (Ctrl-C ends it)", flush=True)
            second.wait()


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
