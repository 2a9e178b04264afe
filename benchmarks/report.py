"""Results for people: markdown tables and sections, and the machine they were measured on."""

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

from benchmarks.contest import Heat, Standing
from server.errors import StartupError
from server.flags import n_cores

_STANDINGS = (
    "server | t/s, its own report | ratio | t/s, client's clock | ratio | t/s in all | first text, ms"
    " | drafts accepted | same text | idle CPU"
)


def table(heads: Sequence[str] | str, rows: Iterable[Sequence[str]], n_words: int = 1) -> str:
    """Markdown. heads: also as one text, with bars between. The first n_words columns are words, the others
    numbers."""
    heads = heads.split(" | ") if isinstance(heads, str) else heads
    rule = ["---"] * n_words + ["---:"] * (len(heads) - n_words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def accepted(n_accepted: int, n_drafted: int) -> str:
    return f"{n_accepted} of {n_drafted}" if n_drafted else "-"


def print_heat(heat: Heat) -> None:
    print(heat_line(heat), flush=True)


def heat_line(heat: Heat) -> str:
    """Tokens/s of each server by its own report, with the ratio to the first one's."""
    first = heat.replies[0]
    parts = [f"{number(first.server_rate)} t/s"]
    for reply in heat.replies[1:]:
        ratio = reply.server_rate / first.server_rate if reply.server_rate and first.server_rate else None
        other = "" if reply.text == first.text else " (other text)"
        parts.append(f"{number(reply.server_rate)} x {number(ratio, 2)}{other}")
    return f"{heat.prompt.id:16} {first.n_tokens:4} tokens: " + " | ".join(parts)


def standings_table(standings: Sequence[Standing], idle: Sequence[float | None]) -> str:
    """Markdown. idle: each server's share of a core while nobody asked anything."""
    rows = [
        (
            s.name,
            number(s.server_rate),
            number(s.server_ratio, 2),
            number(s.client_rate),
            number(s.client_ratio, 2),
            number(s.total_rate),
            number(s.first_ms),
            accepted(s.n_accepted, s.n_drafted) + (f" ({percent(s.acceptance)})" if s.n_drafted else ""),
            f"{s.n_equal} of {s.n_heats}",
            percent(share),
        )
        for s, share in zip(standings, idle, strict=True)
    ]
    return table(_STANDINGS, rows)


def machine() -> str:
    """One line about the hardware and the versions."""
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
    """Name and size. Raises StartupError if there is no such file."""
    if not model.is_file():
        raise StartupError(f"no model file at {model}")
    return f"{model.name}, {model.stat().st_size / 1e6:,.0f} MB"


def arguments(argv: Sequence[str]) -> str:
    """As they were typed, with file names in place of paths, which tell of one machine only."""
    return " ".join(Path(arg).name if "/" in arg else arg for arg in argv)


def section(title: str, module: str, argv: Sequence[str], parts: Sequence[str]) -> str:
    """Markdown to append to RESULTS.md: title, machine, command, results."""
    command = f"`python -m {arguments([module, *argv])}`"
    lines = [f"## {datetime.date.today()}: {title}", f"On: {machine()}", command]
    return "\n\n".join([*lines, *parts]) + "\n"


def publish(text: str, append: Path | None) -> None:
    """Print a section, and append it to a file if there is one."""
    print(f"\n{text}")
    if append:
        with append.open("a") as file:
            file.write(f"\n{text}")
