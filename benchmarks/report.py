"""Format results: markdown tables and sections, and the machine on which they were measured."""

from __future__ import annotations

import datetime
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from server.errors import StartupError
from server.flags import n_cores


def table(heads: Sequence[str] | str, rows: Iterable[Sequence[str]], n_words: int = 1) -> str:
    """Return a markdown table.

    Args:
        heads: Heads of the columns, also as one text with bars between.
        rows: The cells.
        n_words: Number of columns at the left that are words; the others are numbers.
    """
    heads = heads.split(" | ") if isinstance(heads, str) else heads
    rule = ["---"] * n_words + ["---:"] * (len(heads) - n_words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def accepted(n_accepted: int, n_drafted: int) -> str:
    return f"{n_accepted} of {n_drafted} ({percent(n_accepted / n_drafted)})" if n_drafted else "-"


def machine() -> str:
    """Return one line about the hardware and the versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    name = names[0] if names else platform.processor() or platform.machine()
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = f"duo {version('duo')}, llama-cpp-python {version('llama-cpp-python')}"
    system = f"{platform.system()} {platform.machine()}"
    return f"{name}, {n_cores()} cores, {gib:.0f} GiB{_gpus()}; {system}; {versions}"


def _gpus() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=False)
    return "".join(f", {name}" for name in listed.stdout.splitlines()) if listed.returncode == 0 else ""


def model_line(model: Path) -> str:
    """Return the model's name and size. Raises StartupError if there is no such file."""
    if not model.is_file():
        raise StartupError(f"no model file at {model}")
    return f"{model.name}, {model.stat().st_size / 1e6:,.0f} MB"


def arguments(argv: Sequence[str]) -> str:
    """Return the arguments as typed, but with file names in place of paths, which differ by machine."""
    return " ".join(Path(arg).name if "/" in arg else arg for arg in argv)


def section(title: str, module: str, argv: Sequence[str], parts: Sequence[str]) -> str:
    """Return markdown to append to RESULTS.md: title, machine, command, results."""
    command = f"`python -m {arguments([module, *argv])}`"
    lines = [f"## {datetime.date.today()}: {title}", f"On: {machine()}", command]
    return "\n\n".join([*lines, *parts]) + "\n"


def publish(text: str, append: Path | None) -> None:
    """Print a section, and append it to a file if there is one."""
    print(f"\n{text}")
    if append:
        with append.open("a") as file:
            file.write(f"\n{text}")
