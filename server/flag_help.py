"""Describe settings for --help and docs/settings.md, from their definitions."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, CliPositionalArg, CliSuppress

from server.flag_groups import GROUPS, VALUES

INDENT = 8  # columns before a description
MAX_COLUMNS = 100  # columns of help at most: longer lines are hard to read


_SUPPRESS, _POSITIONAL = get_args(CliSuppress)[1], get_args(CliPositionalArg)[1]


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting as shown to people."""

    name: str
    spelling: str  # the flag with its synonyms and its value's placeholder
    description: str
    env: str  # its environment variable, or empty
    default: str  # its default in words, or empty


def grouped(cls: type[BaseSettings], synonyms: Mapping[str, str]) -> dict[str, list[Flag]]:
    """Return the flags of these settings by heading, in the order in which people need them.

    Args:
        cls: The settings.
        synonyms: Other spellings of flags, each with the flag that it stands for.
    """
    found = {
        info.alias or name: _flag_of(cls, info.alias or name, info, synonyms)
        for name, info in cls.model_fields.items()
        if not _is_hidden(info)
    }
    groups = GROUPS.get(program(cls), {"Flags": " ".join(found)})
    return {
        title: flags
        for title, names in groups.items()
        if (flags := [found[name] for name in names.split() if name in found])
    }


def program(cls: type[BaseSettings]) -> str:
    return str(cls.model_config.get("cli_prog_name"))


def help_of(cls: type[BaseSettings], synonyms: Mapping[str, str]) -> str:
    """Return the text that --help prints for these settings; `synonyms`: see grouped()."""
    width = min(MAX_COLUMNS, shutil.get_terminal_size().columns)
    about = " ".join((cls.__doc__ or "").split())
    words = [f"[{name.upper()} …] " for name, info in cls.model_fields.items() if _is_positional(info)]
    lines = [f"usage: {program(cls)} {''.join(words)}[flags]", "", *textwrap.wrap(about, width)]
    for title, flags in grouped(cls, synonyms).items():
        lines += ["", f"{title}:"]
        for flag in flags:
            told = flag.description + (f" (default: {flag.default})" if flag.default else "")
            margin = " " * INDENT
            lines.append(f"  {flag.spelling}")
            lines += textwrap.wrap(told, width, initial_indent=margin, subsequent_indent=margin)
    prefix = cls.model_config.get("env_prefix", "")
    lines += ["", f"Each flag is also an environment variable: --some-name is {prefix}SOME_NAME."]
    return "\n".join(lines)


def _flag_of(cls: type[BaseSettings], name: str, info: FieldInfo, synonyms: Mapping[str, str]) -> Flag:
    prefix = cls.model_config.get("env_prefix", "")
    description = info.description or ""
    default = "" if "default" in description else _default_text(info)
    spelling = name.upper() if _is_positional(info) else _flag_spelling(cls, name, info, synonyms)
    env = "" if info.alias or _is_positional(info) else f"{prefix}{name}".upper()
    return Flag(name, spelling, description, env, default)


def _flag_spelling(cls: type[BaseSettings], name: str, info: FieldInfo, synonyms: Mapping[str, str]) -> str:
    kebab = name.replace("_", "-")
    shortcut = (cls.model_config.get("cli_shortcuts") or {}).get(kebab)
    shorts = [f"-{shortcut}"] if isinstance(shortcut, str) else []
    shorts += [short for short, long in synonyms.items() if long == f"--{kebab}" and short[1] != "-"]
    spelling = ", ".join([*shorts, f"--{kebab}"])
    if info.annotation is bool:
        return f"{spelling}, --no-{kebab}" if info.default else spelling
    return f"{spelling} {_value_name(name, info.annotation)}"


def _value_name(name: str, annotation: Any) -> str:
    """Return the placeholder for the flag's value in the help, such as PATH."""
    if name in VALUES:
        return VALUES[name]
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    if get_origin(kinds[0]) is not None:
        return _value_name(name, kinds[0])
    return {int: "N", float: "X", Path: "PATH"}.get(kinds[0], "TEXT")


def _default_text(info: FieldInfo) -> str:
    value = info.default
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Path):
        return "the bundled one"
    if isinstance(value, tuple):
        return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
    return "" if value is None or value == [] or info.default_factory or info.is_required() else str(value)


def _is_hidden(info: FieldInfo) -> bool:
    return _SUPPRESS in info.metadata


def _is_positional(info: FieldInfo) -> bool:
    return _POSITIONAL in info.metadata
