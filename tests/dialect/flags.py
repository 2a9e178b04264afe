"""Stands in for llama-server's binary in its own tests, see tests/dialect.

It takes its flags, puts the model at hand in the place of those that would be downloaded, and becomes the
server under test.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from server.cli import main as duo

MODEL_FLAGS = ("--model", "--hf-repo", "--hf-file", "--model-url", "--mmproj-url")
"""What names a model: all of them are the one at hand."""
SILENT = (
    "--offline",
    "--no-jinja",
    "--swa-full",
    "--spec-type",
    "--spec-draft-n-min",
    "--backend_sampling",
)
"""Flags that say what duo always does, or that only cost differs with."""
RENAMED = {"--slot-save-path": "--cache-dir", "--spec-draft-n-max": "--draft-max"}


def translated(argv: Sequence[str], model: str, draft: str) -> list[str]:
    """Return llama-server's flags with this model and one thread."""
    flags = list(_flags(argv))
    named = any(flag in MODEL_FLAGS for flag, *_ in flags)
    kept = [list(flag) for flag in flags if flag[0] not in MODEL_FLAGS]
    for flag in kept:
        if flag[0] == "--model-draft":
            flag[1] = draft
    chosen = [["--model", model]] if named else []
    if "--embedding" in argv and "--pooling" not in argv:
        chosen.append(["--pooling", "mean"])  # the file of the tests' own model names one
    return [part for flag in (*chosen, *kept, ["--threads", "1"]) for part in flag]


def for_duo(argv: Sequence[str]) -> list[str]:
    """Return duo's flags for llama-server's."""
    found = [] if "--metrics" in argv else ["--no-metrics"]
    if "--cors-origins" not in argv:
        found += ["--cors-origins", "*"]
    if "--parallel" in argv and "--kv-unified" not in argv:
        found.append("--no-kv-unified")
    for flag, *value in _flags(argv):
        match flag:
            case _ if flag in SILENT:
                continue
            case "--alias":
                found += [flag, f"{value[0]},*"]  # it heeds no names
            case "--model-draft":
                found += ["--draft-model", *value, "--draft-mode", "sync"]
            case _:
                found += [RENAMED.get(flag, flag), *value]
    return found


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield each flag with its value, if it has one."""
    at = 0
    while at < len(argv):
        valued = at + 1 < len(argv) and not argv[at + 1].startswith("--")
        yield tuple(argv[at : at + 1 + valued])
        at += 1 + valued


def main() -> int:
    argv = translated(sys.argv[1:], os.environ["DIALECT_MODEL"], os.environ["DIALECT_DRAFT"])
    if binary := os.environ.get("DIALECT_BINARY"):
        os.execv(binary, [binary, *argv])
    return duo(["serve", *for_duo(argv)])


if __name__ == "__main__":
    sys.exit(main())
