"""Results for people: a heat in a line, standings as a markdown table, and what they were measured on."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from benchmarks.contest import Heat, Standing
from server.flags import n_cores

T = TypeVar("T")


def heat_line(heat: Heat) -> str:
    """Tokens/s of each server by its own report, with the ratio to the first one's."""
    first = heat.replies[0]
    parts = [f"{_number(first.server_rate)} t/s"]
    for reply in heat.replies[1:]:
        ratio = reply.server_rate / first.server_rate if reply.server_rate and first.server_rate else None
        other = "" if reply.text == first.text else " (other text)"
        parts.append(f"{_number(reply.server_rate)} x {_number(ratio, 2)}{other}")
    return f"{heat.prompt.id:16} {first.n_tokens:4} tokens: " + " | ".join(parts)


def standings_table(standings: Sequence[Standing], idle: Sequence[float | None]) -> str:
    """Markdown. `idle`: each server's share of a core while nobody asked anything."""
    lines = [
        "| server | t/s, its own report | ratio | t/s, client's clock | ratio | t/s in all | first text, ms |"
        " drafts accepted | same text | idle CPU |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for standing, share in zip(standings, idle, strict=True):
        drafts = _percent(standing.acceptance)
        if standing.n_drafted:
            drafts = f"{standing.n_accepted} of {standing.n_drafted} ({drafts})"
        cells = [
            standing.name,
            _number(standing.server_rate),
            _number(standing.server_ratio, 2),
            _number(standing.client_rate),
            _number(standing.client_ratio, 2),
            _number(standing.total_rate),
            _number(standing.first_ms),
            drafts,
            f"{standing.n_equal} of {standing.n_heats}",
            _percent(share),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> str:
    """One line about the hardware and the versions."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.partition(":")[2].strip()
            for line in cpuinfo.read_text().splitlines()
            if "model name" in line
        ]
        name = names[0] if names else name
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = f"duo {version('duo')}, llama-cpp-python {version('llama-cpp-python')}"
    return (
        f"{name}, {n_cores()} cores, {gib:.0f} GiB{_gpus()}; "
        f"{platform.system()} {platform.machine()}; {versions}"
    )


def _gpus() -> str:
    """The NVIDIA GPUs of the machine, if any."""
    if shutil.which("nvidia-smi") is None:
        return ""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=False)
    return "".join(f", {name}" for name in listed.stdout.splitlines()) if listed.returncode == 0 else ""


def model_line(model: Path) -> str:
    return f"{model.name}, {model.stat().st_size / 1e6:,.0f} MB"


def command_line(module: str, argv: Sequence[str]) -> str:
    """As it was typed, with file names in place of paths: those tell of one machine only."""
    return " ".join(["python -m", module, *(Path(arg).name if "/" in arg else arg for arg in argv)])


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


# -- what the programs that measure have in common ----------------------------------------


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Where results go, and how much of a grid is measured."""
    parser.add_argument("--append", type=Path, help="append the result to this markdown file")
    parser.add_argument(
        "--plots",
        type=Path,
        nargs="?",
        const=Path("docs/plots"),
        help="also draw into this directory (default: docs/plots)",
    )
    parser.add_argument("--every", type=int, default=1, help="measure every n-th point of the grid only")


def every(points: Sequence[T], n: int) -> Sequence[T]:
    """Every n-th, for a quick look."""
    return points[:: max(1, n)]


def figure(args: argparse.Namespace, name: str, what: str) -> str:
    """Markdown of a figure, by its path as seen from the file of results."""
    base = args.append.parent if args.append else Path()
    return f"![{what}]({os.path.relpath(args.plots / name, base)})"


def section(title: str, module: str, argv: Sequence[str], parts: Sequence[str]) -> str:
    """Markdown that can be appended to a file of results: what, on what, by which command, the results."""
    lines = [f"## {datetime.date.today()}: {title}", f"On: {machine()}", f"`{command_line(module, argv)}`"]
    return "\n\n".join([*lines, *parts]) + "\n"


def publish(text: str, append: Path | None) -> None:
    """Print a section, and append it where asked."""
    print(f"\n{text}")
    if append:
        with append.open("a") as file:
            file.write(f"\n{text}")
