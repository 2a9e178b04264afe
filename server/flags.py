"""Settings from flags and environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from server.errors import StartupError

_SYNONYMS = {  # llama.cpp's spellings of the same flags, most of which argparse cannot take
    "-np": "--parallel",
    "-ngl": "--gpu-layers",
    "--n-gpu-layers": "--gpu-layers",
    "-ngld": "--gpu-layers-draft",
    "-hf": "--hf-repo",
    "-hfr": "--hf-repo",
    "-hff": "--hf-file",
    "-hfd": "--hf-repo-draft",
    "-hfrd": "--hf-repo-draft",
    "-md": "--draft-model",
    "--model-draft": "--draft-model",
    "-td": "--draft-threads",
    "--threads-draft": "--draft-threads",
    "-sm": "--split-mode",
    "-ts": "--tensor-split",
    "-mg": "--main-gpu",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-fa": "--flash-attn",
    "-tb": "--threads-batch",
    "-ub": "--ubatch-size",
    "--n-predict": "--predict",
    "--embedding": "--embeddings",
    "--rerank": "--reranking",
    "--webui": "--ui",
    "--no-webui": "--no-ui",
}

_NEEDLESS = ("--jinja", "--cont-batching", "-cb")
"""llama-server's switches for what duo always does."""

SPELLING: dict[str, Any] = {
    "_cli_kebab_case": True,
    "_cli_implicit_flags": True,
    "_cli_hide_none_type": True,
    "_cli_avoid_json": True,
}
"""How flags are made of the names of settings: --cache-ram, --gate and --no-gate."""

S = TypeVar("S", bound=BaseSettings)


def read(cls: type[S], argv: Sequence[str]) -> S:
    """Settings from flags and environment. Raises StartupError in one line; prints help by itself."""
    try:
        return cls(_cli_parse_args=[_spelled(arg) for arg in argv if arg not in _NEEDLESS], **SPELLING)
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "settings"
        reason = first["msg"].removeprefix("Value error, ")
        raise StartupError(f"{flag}: {reason}, not {first.get('input')!r}") from error


def _spelled(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return _SYNONYMS.get(flag, flag) + equals + value


def n_cores() -> int:
    """CPUs this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
