"""Find the files of one model: a GGUF file, or the parts that llama.cpp's gguf-split makes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from server.errors import StartupError

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf", re.IGNORECASE)
_MAGIC = b"GGUF"


def siblings(name: str) -> list[str]:
    """Return the names of all parts of a model, given one; only `name` if that file is the whole model."""
    found = _PART.fullmatch(name)
    if found is None:
        return [name]
    total, ending = found["total"], name[-len(".gguf") :]
    return [f"{found['stem']}-{number:05d}-of-{total}{ending}" for number in range(1, int(total) + 1)]


def parts(path: Path) -> list[Path]:
    """Return all files of a model, in order, given the path of any of them.

    Raises StartupError if a file is missing or is not a GGUF file.
    """
    paths = [path.with_name(name) for name in siblings(path.name)]
    missing = [one.name for one in paths if not one.is_file()]
    if missing and (len(paths) == 1 or not path.is_file()):
        raise StartupError(f"no model file at {path}: give the path of a GGUF file")
    if missing:
        raise StartupError(f"{path} is a part of {len(paths)}, of which are missing: {listed(missing, 3)}")
    for one in paths:
        with one.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise StartupError(f"{one} is not a GGUF file: give the path of a GGUF model")
    return paths


def model_name(path: Path) -> str:
    """Return the file's name without the ending and without the number of its part."""
    found = _PART.fullmatch(path.name)
    return found["stem"] if found else path.stem


def listed(names: Sequence[str], most: int) -> str:
    """Return a text with the first `most` names, and the number of omitted ones."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
