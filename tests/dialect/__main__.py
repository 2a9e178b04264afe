"""How much of llama-server's dialect duo speaks: llama.cpp's own server tests, run against duo.

    python -m tests.dialect --llama-cpp DIR --reference FILE [--llama-server BIN] [CASE …]

DIR is an unpacked source; its tests are copied, and run by --python, which has what their requirements.txt
names. In the place of the server's binary is a script that translates its flags (flags.py). All that
the tests would download is a tiny model with random weights. What counts are the cases that llama-server
passes under these conditions. They are told in FILE, which a run with --llama-server makes.
Numbers of tokens must be those of llama-server; texts that only the tests' own models would say are compared
with nothing. Cases are files or single ones; without any, all but the slow ones and those of OTHER things.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.processes import free_port
from tests.model.kinds import KINDS
from tests.model.random_models import write

ROOT = Path(__file__).parents[2]
TESTS = Path("tools") / "server" / "tests"
OTHER = ("mcp_servers", "proxy", "router", "stream", "tools_builtin")
"""Files of cases about running tools, fetching pages, and several models behind one address."""
NOISE = 0.3
"""Of the draft model's weights: it is right now and then. Half: more often, and rejections go untested."""
SHIM = '#!/bin/sh\nexec "{python}" -m tests.dialect.flags "$@"\n'

Expected: TypeAlias = tuple[str, str | int]
"""A case, and a text or number of it that llama-server's own does not fit, or does."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """A run's results: what became of each case and why, with cases their match on this model."""

    outcome: dict[str, str] = field(default_factory=dict[str, str])
    why: dict[str, str] = field(default_factory=dict[str, str])
    of_model: list[Expected] = field(default_factory=list[Expected])

    @staticmethod
    def read(path: Path) -> Outcomes:
        found = Outcomes()
        for line in path.read_text().splitlines():
            told: dict[str, Any] = json.loads(line)
            if "expected" in told:
                found.of_model.append((told["case"], told["expected"]))
            else:
                found.outcome[told["case"]], found.why[told["case"]] = told["outcome"], told["why"]
        return found

    @property
    def passed(self) -> set[str]:
        return {case for case, outcome in self.outcome.items() if outcome == "passed"}


COUNT = re.compile(
    r"((?:prompt_n|prompt_tokens|cached_tokens|cache_n|n_saved|n_restored|predicted_n|tokens)"
    r"""["'\]\[0]* == )(n_\w+|bosId|\d+(?: \* \d+)?)\b"""
)
"""Where a test compares with a number of tokens, or a token, of its own model."""


def prepared(llama_cpp: Path, place: Path) -> Path:
    """Copy the tests to where they find the source's templates and return their directory."""
    tests = place / TESTS
    shutil.copytree(llama_cpp / TESTS, tests)
    for module in (tests / "unit").glob("test_*.py"):
        module.write_text(COUNT.sub(r"\1Tokens(\2)", module.read_text()))
    (place / "models").symlink_to(llama_cpp.resolve() / "models")
    shim = place / "llama-server"
    shim.write_text(SHIM.format(python=sys.executable))
    shim.chmod(0o755)
    (tests / "tmp").mkdir(exist_ok=True)
    return tests


def models(place: Path) -> dict[str, str]:
    """Write a model and a draft model and return what the shim is told of them."""
    target, draft = place / "target.gguf", place / "draft.gguf"
    write(target, KINDS["qwen3"])
    write(draft, KINDS["qwen3"], noise=NOISE)
    return {"DIALECT_MODEL": str(target), "DIALECT_DRAFT": str(draft)}


def run(
    args: argparse.Namespace,
    results: Path,
    binary: Path | None,
    of_model: Sequence[tuple[str, str | int]] = (),
) -> Outcomes:
    """Run the tests against this binary, or against duo.

    results: a line for each case as soon as it ends.
    """
    with tempfile.TemporaryDirectory() as place:
        tests = prepared(args.llama_cpp, Path(place))
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LLAMA_SERVER_BIN_PATH": str(Path(place) / "llama-server"),
            "PORT": str(free_port()),
            **models(Path(place)),
            "DIALECT_BINARY": str(binary.resolve()) if binary else "",
            "DIALECT_LENIENT": "1" if binary else "",
            "DIALECT_OF_MODEL": json.dumps(list(of_model)),
            "DIALECT_RESULTS": str(results.resolve()),
        }
        what = ["-q", "-m", "not slow", "-p", "tests.dialect.plugin", "--tb=short"]
        what += args.cases or [f"--ignore=unit/test_{name}.py" for name in OTHER]
        log = subprocess.run(
            [args.python, "-m", "pytest", *what], cwd=tests, env=environment, capture_output=True, text=True
        )
    if not results.exists():
        raise SystemExit(f"pytest ended with {log.returncode}: {log.stdout[-2000:]}{log.stderr[-2000:]}")
    return Outcomes.read(results)


def report(reference: Outcomes, found: Outcomes) -> Iterator[str]:
    """Yield a line for each file, and one for each case that only llama-server passes."""
    counted = {case for case in reference.passed if case in found.outcome}
    files = sorted({_file(case) for case in found.outcome})
    of_reference, of_duo = Counter(map(_file, counted)), Counter(map(_file, counted & found.passed))
    for name in files:
        yield f"{of_duo[name]:4} of {of_reference[name]:3}  {name}"
    yield f"{of_duo.total():4} of {of_reference.total():3}  in all"
    for case in sorted(counted - found.passed):
        yield f"{case}: {found.why[case]}"


def _file(case: str) -> str:
    return case.partition("::")[0]


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the tests")
    parser.add_argument("--reference", type=Path, required=True, metavar="FILE")
    parser.add_argument("--llama-server", type=Path, metavar="BIN")
    parser.add_argument("cases", nargs="*")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.reference.exists():
        reference = Outcomes.read(args.reference)
    elif args.llama_server is None:
        raise SystemExit("--reference is not there yet: --llama-server makes it")
    else:
        reference = run(args, args.reference, args.llama_server)
    with tempfile.TemporaryDirectory() as place:
        found = run(args, Path(place) / "results", None, reference.of_model)
    print(*report(reference, found), sep="\n")


if __name__ == "__main__":
    main()
