"""Fetch a pinned package with an available tool: pip of this Python, uv, or a pip on the PATH.

The tool's own settings and variables apply: index, proxy, certificates, cache, offline.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from server.errors import StartupError
from server.stop_signals import leave_if_requested

logger = logging.getLogger("duo.loading")

POLL_S = 0.1  # seconds between two checks of the tool. Twice: a start after a download waits 0.1 s longer
PROGRESS_S = 2.0  # seconds between two lines about the progress: 93 MB take 10 s at 10 MB/s. Half: 10 lines
TOOL_GRACE_S = 5.0  # seconds that the tool has to end by itself, removing what it wrote
RETRIES = 2  # retries of failed connections; with pip's default of 5, it reports a missing network after 8 s
_PIP = ("download", "--no-input", "--disable-pip-version-check", "--no-color", "--quiet")
_ONLY = ("--no-deps", "--only-binary", ":all:", "--require-hashes")

REASONS = (
    (r"HASH", "its hash differs from the pinned one"),
    (r"No space left", "the disk is full"),
    (r"Retrying|NewConnection|ConnectTimeout|[Cc]onnect|dns error|[Pp]roxy", "the index cannot be reached"),
    (r"No matching distribution|not found in|no version", "the index does not offer it"),
)
"""Patterns of a tool's error messages, and their meanings; the first match applies."""


@dataclass(frozen=True, slots=True)
class PackageTool:
    """A program that fetches packages."""

    name: str
    command: tuple[str, ...]  # arguments before the requirement file
    to: str  # flag for the folder that it writes to

    def fetch(self, requirement: str, folder: Path, n_bytes: int) -> None:
        """Fetch one package into folder/fetched, with the tool's other files beside it in `folder`.

        Args:
            requirement: A line of a requirements file, with its hash.
            folder: An existing folder for this package alone.
            n_bytes: Size of the package, for messages about the progress.

        Raises:
            StartupError: the tool failed.
            OSError: it cannot be run.
        """
        (folder / "requirement.txt").write_text(requirement)
        command = [*self.command, self.to, str(folder / "fetched"), "-r", str(folder / "requirement.txt")]
        with tempfile.TemporaryFile() as complaints:
            status = _run_tool(command, folder, n_bytes, complaints)
            if status:
                complaints.seek(0)
                package = requirement.split()[0].replace("==", " ")
                raise StartupError(f"{package} cannot be fetched: {_reason_of(complaints.read(), self.name)}")


def package_tool() -> PackageTool | None:
    """Return the first available tool, None if there is none."""
    pip = [*_PIP, "--retries", str(RETRIES), *_ONLY]
    if importlib.util.find_spec("pip") is not None:
        return PackageTool("pip", (sys.executable, "-m", "pip", *pip), "--dest")
    if uv := shutil.which("uv"):
        quiet = ("--quiet", "--color", "never", "--python", sys.executable)
        return PackageTool("uv", (uv, "pip", "install", *quiet, *_ONLY), "--target")
    if other := shutil.which("pip3") or shutil.which("pip"):
        return PackageTool("pip", (other, *pip), "--dest")
    return None


def _run_tool(command: Sequence[str], folder: Path, n_bytes: int, complaints: IO[bytes]) -> int:
    """Run a tool, log its progress, and return its exit status.

    Args:
        command: The command line.
        folder: Where the tool writes its files, temporary ones included.
        n_bytes: Size of the package.
        complaints: Gets the tool's standard error.
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaints, env=environment
    )
    try:
        logged_at = time.monotonic()
        while True:
            try:
                return process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                leave_if_requested()
            if time.monotonic() - logged_at >= PROGRESS_S and (size := _largest_file(folder)):
                logged_at = time.monotonic()
                logger.info("  fetching %.0f %% of %.0f MB", 100 * min(1, size / n_bytes), n_bytes / 1e6)
    finally:
        _end_tool(process)


def _end_tool(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(TOOL_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _largest_file(folder: Path) -> int:
    """Return the size in bytes of the largest file in the folder: the one that is being fetched."""
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # the tool has moved it
            continue
    return max(sizes)


def _reason_of(complaint: bytes, tool: str) -> str:
    """Return in a few words why a tool failed; `complaint`: what it wrote to standard error."""
    text = complaint.decode(errors="replace")
    for pattern, meaning in REASONS:
        if re.search(pattern, text):
            return meaning
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{tool} says: {lines[-1]}" if lines else f"{tool} failed and does not say why"
