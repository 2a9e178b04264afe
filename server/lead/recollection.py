"""Keep measurements of this machine in files between runs. Values of a lost file are measured again."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from server.cache_folder import cache_folder
from server.llama.options import LlamaOptions

logger = logging.getLogger("duo")


def recall(kind: str, what: Sequence[object]) -> Any:
    """Return the value that keep() stored on this machine, with this kind and `what`; None if there is none.

    `what`: Everything that the value depends on.
    """
    try:
        return orjson.loads(_path_of(kind, what).read_bytes())
    except (OSError, ValueError, RuntimeError):
        return None


def keep(kind: str, what: Sequence[object], value: Any) -> None:
    """Store a JSON value that recall() returns for this kind and `what`; log if it cannot be written."""
    try:
        path = _path_of(kind, what)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_bytes(orjson.dumps(value))
        aside.replace(path)
    except (OSError, RuntimeError) as error:
        logger.info("cannot keep %s for the next start: %s", kind, error)


def of_files(*paths: Path) -> tuple[object, ...]:
    """Return a key that changes when these files or llama.cpp change. Raises OSError for a missing file."""
    statuses = [(path.name, path.stat()) for path in paths]
    files = [(name, status.st_size, int(status.st_mtime)) for name, status in statuses]
    return *files, version("llama-cpp-python")


def of_model(options: LlamaOptions) -> tuple[object, ...]:
    """Return a key of the files and options that measurements of a model depend on. Raises StartupError."""
    return *of_files(*options.files), options.costs


def of_logits(options: LlamaOptions) -> tuple[object, ...]:
    """Return a key of the files and options that a model's own logits depend on.

    A prediction block does not change them. Raises StartupError.
    """
    return of_model(replace(options, weights=replace(options.weights, mtp=False), n_tail=0))


def _path_of(kind: str, what: Sequence[object]) -> Path:
    """Return the path of the file for this kind and `what`. Raise RuntimeError for a user without a home."""
    machine = platform.node(), platform.machine(), platform.processor(), os.cpu_count()
    key = hashlib.sha256(repr((*machine, *what)).encode()).hexdigest()[:16]
    return cache_folder() / f"{kind}-{key}.json"
