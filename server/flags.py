"""Read settings from flags and environment."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsError

from server.errors import StartupError, UsageError
from server.flag_help import help_of, program

SYNONYMS = {  # llama.cpp's spellings of the same flags, most of which argparse cannot take
    "-np": "--parallel",
    "-ngl": "--gpu-layers",
    "--n-gpu-layers": "--gpu-layers",
    "-ngld": "--gpu-layers-draft",
    "-hf": "--hf-repo",
    "-hfr": "--hf-repo",
    "-hff": "--hf-file",
    "-mm": "--mmproj",
    "--no-mmproj": "--no-mmproj-auto",
    "-hfd": "--hf-repo-draft",
    "-hfrd": "--hf-repo-draft",
    "-md": "--draft-model",
    "--model-draft": "--draft-model",
    "-td": "--draft-threads",
    "--threads-draft": "--draft-threads",
    "-sm": "--split-mode",
    "-ts": "--tensor-split",
    "-mg": "--main-gpu",
    "-ot": "--override-tensor",
    "-otd": "--override-tensor-draft",
    "-cmoe": "--cpu-moe",
    "-cmoed": "--cpu-moe-draft",
    "-ncmoe": "--n-cpu-moe",
    "-ncmoed": "--n-cpu-moe-draft",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-fa": "--flash-attn",
    "-tb": "--threads-batch",
    "-C": "--cpu-mask",
    "-Cr": "--cpu-range",
    "-Cd": "--cpu-mask-draft",
    "-Crd": "--cpu-range-draft",
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
    "_cli_exit_on_error": False,
}
"""Options of pydantic-settings that turn names into flags such as --cache-ram, --gate and --no-gate."""

S = TypeVar("S", bound=BaseSettings)


def read(cls: type[S], argv: Sequence[str]) -> S:
    """Read settings from flags and environment; print help if it is asked for.

    Raises:
        UsageError: a flag is wrong.
        StartupError: a value is wrong; the message is one line.
    """
    own = argv[: argv.index("--")] if "--" in argv else argv
    if "-h" in own or "--help" in own:
        print(help_of(cls, SYNONYMS))
        raise SystemExit(0)
    try:
        return cls(_cli_parse_args=[_flag_spelled(arg) for arg in argv if arg not in _NEEDLESS], **SPELLING)
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "settings"
        reason = first["msg"].removeprefix("Value error, ")
        raise StartupError(f"{flag}: {reason}, not {first.get('input')!r}") from error
    except SettingsError as error:
        raise UsageError(_wrong_flag(cls, str(error))) from error


def _wrong_flag(cls: type[BaseSettings], reason: str) -> str:
    """Return argparse's error `reason` as one line; for an unknown flag, name the most similar flag."""
    unknown = re.search(r"unrecognized arguments: (\S+)", reason)
    if unknown is None:
        return f"{reason.removeprefix('error parsing CLI: ')}: {program(cls)} --help lists the flags"
    flag = unknown[1].partition("=")[0]
    names = [name.replace("_", "-") for name in cls.model_fields]
    known = [*(f"--{name}" for name in names), *(f"--no-{name}" for name in names), *SYNONYMS]
    return f"there is no flag {flag}{meant(flag, known)}: {program(cls)} --help lists them"


def meant(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean X?)" with the known word X most similar to `word`; "" if none is similar."""
    found = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {found[0]}?)" if found else ""


def _flag_spelled(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return SYNONYMS.get(flag, flag) + equals + value


def n_cores() -> int:
    """Return the number of CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
