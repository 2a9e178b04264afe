"""Play schedules of faults to live systems: `python -m tests.chaos.seeds --seeds 0-99 [--models] [--jobs 2]`.

Prints a line for each schedule with its faults, and what did not hold. Exit status 1 if anything did not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from benchmarks.inflate import convert
from drafters.drafter_settings import BUNDLED_MODEL as DRAFT
from server.settings import BUNDLED_MODEL
from tests.chaos.schedule import Chaos, schedule
from tests.chaos.system import live

EACH = 25  # schedules that one system lives through: leaks add up, and starts do not


def seeds_of(text: str) -> range:
    """Return a range of seeds: "7" is 0 to 6; "3-5" is 3, 4 and 5."""
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


Models: TypeAlias = tuple[Path, Path] | None


@contextmanager
def exact_models() -> Generator[tuple[Path, Path]]:
    """Yield the bundled target and draft model as F32, whose texts depend least on widths."""
    with TemporaryDirectory(prefix="duo-f32-", dir="/tmp") as folder:
        target, draft = Path(folder, "target.gguf"), Path(folder, "draft.gguf")
        convert(BUNDLED_MODEL, target, "f32")
        convert(DRAFT, draft, "f32")
        yield target, draft


def play(seeds: Sequence[int], models: Models) -> tuple[Counter[str], Counter[str]]:
    """Run all seeds on one system as long as all is well, and return counts of faults and of replies."""
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    rest = list(seeds)
    while rest:
        with (
            TemporaryDirectory(prefix="duo-chaos-", dir="/tmp") as folder,
            live(Path(folder), models) as system,
        ):
            chaos = Chaos(system)
            chaos.warm_up()
            while rest and not _failed(chaos, rest.pop(0), faults):
                counts["well"] += 1
        counts.update({"replies": chaos.n_asked, "accepted": chaos.n_accepted})
    return faults, counts


def _failed(chaos: Chaos, seed: int, faults: Counter[str]) -> bool:
    """Run a seed, print its result, and return True if it failed."""
    began, turns = time.monotonic(), schedule(seed)
    problems = chaos.play(turns)
    names = [turn.fault.name for turn in turns]
    faults.update(names)
    memory = chaos.system.lead.memory() >> 20 if chaos.system.lead.alive else 0
    line = f"{seed}: {'failed' if problems else 'well'}, {time.monotonic() - began:.1f} s, {memory} MiB"
    print("\n  ".join([f"{line}: {', '.join(names)}", *problems]), flush=True)
    return bool(problems)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.seeds", description="Schedules of faults.")
    parser.add_argument("--seeds", type=seeds_of, default=range(100), help="how many, or FIRST-LAST")
    parser.add_argument("--models", action="store_true", help="the bundled models as F32, not toys")
    parser.add_argument("--jobs", type=int, default=2, help="systems at once")
    args = parser.parse_args()
    with ExitStack() as stack:
        models = stack.enter_context(exact_models()) if args.models else None
        seeds: range = args.seeds
        parts = [seeds[i : i + EACH] for i in range(0, len(seeds), EACH)]
        pool = stack.enter_context(ProcessPoolExecutor(args.jobs, get_context("spawn")))
        done = [one.result() for one in as_completed([pool.submit(play, part, models) for part in parts])]
    faults, counts = (sum(found, Counter[str]()) for found in zip(*done, strict=True))
    print(", ".join(f"{name}: {n}" for name, n in faults.most_common()))
    print(f"{counts['well']} of {len(seeds)} schedules went well, with {counts['replies']} replies compared")
    print(f"{counts['accepted']} guesses were accepted in them")
    return counts["well"] < len(seeds)


if __name__ == "__main__":
    sys.exit(main())
