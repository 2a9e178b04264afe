"""Fuzzing led by coverage: `python -m tests.fuzz TARGET [CORPUS] [flags of libFuzzer, such as -runs=100000]`.

Needs atheris, which `make fuzz` installs. --list: the names of all targets. An input that fails is written to
crash-… and ends the program.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    if sys.argv[1:] == ["--list"]:
        print(*import_module("tests.fuzz.targets").TARGETS)
        return
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["server", "drafters"]):
        targets, seeds = import_module("tests.fuzz.targets"), import_module("tests.fuzz.seeds")
    if len(sys.argv) < 2 or sys.argv[1] not in targets.TARGETS:
        sys.exit(
            f"usage: python -m tests.fuzz TARGET [CORPUS] [-runs=N]; targets: {', '.join(targets.TARGETS)}"
        )
    name = sys.argv.pop(1)
    for corpus in sys.argv[1:2]:
        if not corpus.startswith("-"):
            Path(corpus).mkdir(parents=True, exist_ok=True)
            for i, seed in enumerate(seeds.SEEDS[name]):
                (Path(corpus) / f"seed-{i}").write_bytes(seed)
    atheris.Setup(sys.argv, targets.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
