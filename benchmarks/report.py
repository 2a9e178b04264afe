"""Results for people: a heat in a line, standings as a markdown table, and what they were measured on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.contest import Heat, Standing
from server.flags import n_cores


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
        "| server | t/s, its own report | ratio | t/s, client's clock | ratio | first text, ms |"
        " drafts accepted | same text | idle CPU |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
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
