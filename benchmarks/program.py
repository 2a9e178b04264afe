"""Shared parts of the programs: flags, one line for an error, and the output of a result."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import report
from drafters.drafter_settings import BUNDLED_MODEL as BUNDLED_DRAFT
from server.errors import DuoError, StartupError
from server.flags import n_cores
from server.settings import BUNDLED_MODEL

Result: TypeAlias = tuple[str, Sequence[str]]
"""The title of a section, and its parts in markdown."""

_SHARED: dict[str, dict[str, Any]] = {
    "llama-server": {"type": Path, "help": "its binary, or a Python with xllamacpp"},
    "model": {"type": Path, "default": BUNDLED_MODEL, "help": "GGUF file (default: bundled)"},
    "inflated": {"type": Path, "help": "GGUF file (default: bundled, inflated to 400M)"},
    "draft-model": {"type": Path, "default": BUNDLED_DRAFT, "help": "GGUF file of the draft model"},
    "device": {"type": int, "help": "CUDA device of each server's model"},
    "draft-device": {"type": int, "help": "CUDA device of each server's draft model"},
    "threads": {"type": int, "default": n_cores(), "help": "threads of each server's model"},
    "duo-flags": {"type": str.split, "default": [], "help": "more flags for duo"},
    "prompts": {"type": int, "default": 12, "help": "how many different prompts"},
    "rounds": {"type": int, "default": 1, "help": "how often everything is asked"},
    "max-tokens": {"type": int, "default": 128, "help": "longest reply"},
}


def make_parser(name: str, what: str, *shared: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with --append and these shared flags; "inflated" is --model with another default."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=what)
    for flag in shared:
        parser.add_argument("--model" if flag == "inflated" else f"--{flag}", **_SHARED[flag])
    parser.add_argument("--append", type=Path, help="append the result to this markdown file")
    parser.set_defaults(**defaults)
    return parser


def numbers(text: str) -> list[int]:
    """Parse numbers: "1,4" is [1, 4]. Raises ValueError for numbers below 1."""
    found = [int(part) for part in text.split(",") if part]
    if min(found, default=1) < 1:
        raise ValueError(text)
    return found


def floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def main(
    make: Callable[[], argparse.ArgumentParser], measure: Callable[[argparse.Namespace], Result]
) -> Callable[..., int]:
    """Return a program that parses its command line, measures, prints the section and appends it to a file.

    The program takes its command line as an argument (default: the process's), and returns the exit status.
    """

    def run(argv: Sequence[str] | None = None) -> int:
        arguments = sys.argv[1:] if argv is None else argv
        parser = make()
        args = parser.parse_args(arguments)
        module = parser.prog.removeprefix("python -m ")

        def work() -> None:
            title, parts = measure(args)
            report.publish(report.section(title, module, arguments, parts), args.append)

        return status_of(module.removeprefix("benchmarks."), work)

    return run


def status_of(name: str, work: Callable[[], object]) -> int:
    """Call `work`, and return the program's exit status; print an error as one line.

    SIGTERM and Ctrl-C leave through the with blocks, which end the servers.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        work()
    except (DuoError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _leave(*_: object) -> None:
    raise SystemExit(0)


def check_files(*paths: Path) -> None:
    """Raise StartupError if one of these files is missing."""
    for path in paths:
        if not path.is_file():
            raise StartupError(f"no file at {path}")


def binary(path: Path) -> Path:
    """Return the absolute path of llama-server. Raises StartupError unless it can be executed."""
    check_files(path)
    if not os.access(path, os.X_OK):
        raise StartupError(f"{path} cannot be executed: --llama-server takes the binary")
    return path.absolute()  # a Python in a virtual environment is a link
