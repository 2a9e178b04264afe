"""See drafting pay, on a machine without a large model: what `make demo` runs.

The bundled target is inflated to the cost of a 400M-parameter BF16 model, once, into the user's cache
directory. Two servers on it, without and with a drafter, answer the same prompts in turn; then the one with
the drafter stays.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contest import Heat, Standing, run, standings
from benchmarks.gguf_file import GGUFSource
from benchmarks.inflate import describe, inflate, read_shape
from benchmarks.processes import Command, Process, duo
from benchmarks.prompts import Prompt, load
from benchmarks.shape import choose
from server.errors import DuoError
from server.flags import n_cores
from server.settings import BUNDLED_MODEL

N_PARAMS, KIND = 400_000_000, "bf16"
NOTE = (
    "Demonstration: the bundled 28M-parameter model, inflated with weights that do nothing to the cost of a "
    "400M-parameter BF16 model. The text is that of the small model, the time that of the large one."
)
QUESTION = Prompt(
    "demonstration",
    [
        {
            "role": "user",
            "content": "Illustrate the difference between concurrency and parallelism in Python.",
        }
    ],
)


def cached_model(console: Console) -> Path:
    """The inflated target, made now unless a former run has. Raises StartupError, OSError."""
    digest = hashlib.sha256(BUNDLED_MODEL.read_bytes()).hexdigest()[:8]
    path = cache_directory() / f"{BUNDLED_MODEL.stem}-inflated-400m-{KIND}-{digest}.gguf"
    if path.exists():
        console.print(f"Inflated demonstration model: {path}")
        return path
    shape = choose(read_shape(GGUFSource(BUNDLED_MODEL)), N_PARAMS)
    console.print(f"Inflating the bundled target, once, to {describe(shape, KIND)}: {path}")
    inflate(BUNDLED_MODEL, path, shape, KIND)
    return path


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duo"


def commands(model: Path, draft_max: int) -> tuple[Command, Command]:
    """Without drafts, and with the draft model where duo up puts it: in the lead on a machine with few cores,
    in a process of its own on others. The lead gets every core in both."""
    common = ("--model", str(model), "--alias", "duo-tiny-inflated", "--note", NOTE)
    common += ("--threads", str(n_cores()))
    return (
        Command("without drafter", duo("up", *common, "--drafters", "0", "--draft-max", "0")),
        Command("with drafter", duo("up", *common, "--drafters", "1", "--draft-max", str(draft_max))),
    )


def measure(servers: Sequence[Process], prompts: Sequence[Prompt], max_tokens: int) -> list[Heat]:
    run(servers, [QUESTION], 8)  # warm-up
    return run(servers, prompts, max_tokens)


def results(heats: Sequence[Heat], standing: Standing) -> Table:
    table = Table("prompt", "tokens", "without, t/s", "with, t/s", "speed-up", "text", box=None)
    for heat in heats:
        plain, drafted = heat.replies
        same = "same" if plain.text == drafted.text else "other"
        rates = [plain.client_rate or 0.0, drafted.client_rate or 0.0]
        speed_up = f"{rates[1] / rates[0]:.2f}" if rates[0] else "-"
        table.add_row(heat.prompt.id, str(plain.n_tokens), *(f"{r:.1f}" for r in rates), speed_up, same)
    table.add_section()
    equal = f"{standing.n_equal} of {standing.n_heats} same"
    table.add_row(
        "median", "", "", f"{standing.client_rate or 0:.1f}", f"{standing.client_ratio or 0:.2f}", equal
    )
    return table


def demonstrate(args: argparse.Namespace, console: Console) -> None:
    """Raises DuoError, OSError."""
    plain, drafted = commands(cached_model(console), args.draft_max)
    with ExitStack() as stack:
        console.print("Starting two servers on it: one without a drafter, one with.")
        first = stack.enter_context(Process(plain))
        second = stack.enter_context(Process(drafted, None if args.measure_only else args.port))
        first.wait_ready()
        second.wait_drafting()
        prompts = [QUESTION, *load(args.prompts - 1)]
        console.print(f"Asking {len(prompts)} prompts of both in turn (by the client's clock) …")
        heats = measure([first, second], prompts, args.max_tokens)
        standing = standings([first.name, second.name], heats)[1]
        console.print(results(heats, standing))
        console.print(
            f"With the drafter {standing.client_ratio or 0:.2f} times as fast; "
            f"{standing.n_accepted} of {standing.n_drafted} drafted tokens accepted."
        )
        first.stop()
        if not args.measure_only:
            console.print(f"Chat with it: http://127.0.0.1:{second.port} (Ctrl-C ends it)")
            second.wait()


def _leave(*_: object) -> None:
    raise SystemExit(0)  # through the with blocks, which end the servers


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description="See drafting pay.")
    parser.add_argument("--prompts", type=int, default=8, help="how many prompts to ask")
    parser.add_argument("--max-tokens", type=int, default=160, help="longest reply")
    parser.add_argument("--draft-max", type=int, default=16, help="most drafted tokens verified per step")
    parser.add_argument("--port", type=int, default=5555, help="of the server that stays")
    parser.add_argument("--measure-only", action="store_true", help="measure, then stop both servers")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _leave)
    try:
        demonstrate(args, Console(highlight=False))
    except (DuoError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
