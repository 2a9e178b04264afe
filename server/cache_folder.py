"""The folder for files that duo can make or download again."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_ASIDE, _LOCK = ".making-", ".lock"


def cache_folder() -> Path:
    """Return duo's folder under $XDG_CACHE_HOME, or under ~/.cache. It may not exist yet.

    Raises:
        RuntimeError: the user has no home.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "duo"


@contextmanager
def temporary_folder(folder: Path) -> Generator[Path]:
    """Make an empty subfolder of `folder` for unfinished files, and remove it after the block.

    Only one process at a time has such a subfolder; other processes wait. Subfolders that killed processes
    have left behind are removed first. Raises OSError.
    """
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for orphan in folder.glob(f"{_ASIDE}*"):
            shutil.rmtree(orphan, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=folder, ignore_cleanup_errors=True) as name:
            yield Path(name)
