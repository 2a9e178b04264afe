"""Settings from flags and environment, and what of the machine their defaults depend on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from server.errors import StartupError

_LONG_SHORTCUTS = {"-np": "--parallel", "-ngl": "--gpu-layers"}  # llama.cpp's, which argparse cannot spell

S = TypeVar("S", bound=BaseSettings)


def read(cls: type[S], argv: Sequence[str]) -> S:
    """Settings from flags and environment. Raises StartupError in one line; prints help by itself."""
    try:
        return cls(_cli_parse_args=[_LONG_SHORTCUTS.get(arg, arg) for arg in argv])  # pyright: ignore[reportCallIssue]
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "settings"
        raise StartupError(f"{flag}: {first['msg']}, not {first.get('input')!r}") from error


def n_cores() -> int:
    """CPUs this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
