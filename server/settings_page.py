"""Writes docs/settings.md, from the definitions of all settings, to standard output."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_settings import BaseSettings

from drafters.drafter_settings import DrafterSettings
from server.doctor.doctor_command import DoctorSettings
from server.flag_help import Flag, grouped
from server.flags import SYNONYMS
from server.local.lend import LendSettings
from server.settings import LeadSettings, UpSettings
from server.terminal.chat_command import ChatSettings
from server.terminal.probe import ProbeSettings
from server.terminal.top import TopSettings

HEAD = """# Settings

Each setting is a flag and an environment variable; a flag wins. This page is made by `make docs` from what
`--help` prints too. Flags are named as llama-server names them where they mean the same."""
UP_ONLY = "; `duo up` only"


def page() -> str:
    """Return the whole page, in Markdown."""
    parts = [HEAD, "## duo up, duo serve"]
    served = set(LeadSettings.model_fields)
    told: set[tuple[str, str, str]] = set()
    for title, flags in grouped(UpSettings, SYNONYMS).items():
        parts.append(f"### {title}\n\n{_table(flags, served)}")
        told |= {_key(flag) for flag in flags}
    for heading, cls in (
        ("duo draft (duo-drafter)", DrafterSettings),
        ("duo lend", LendSettings),
        ("duo chat", ChatSettings),
        ("duo top", TopSettings),
        ("duo probe", ProbeSettings),
        ("duo doctor", DoctorSettings),
    ):
        flags = [flag for group in grouped(cls, SYNONYMS).values() for flag in group]
        own = [flag for flag in flags if _key(flag) not in told]
        told |= {_key(flag) for flag in own}
        shared = [flag for flag in flags if flag not in own]
        parts.append(f"## {heading}\n\n{_table(own)}{_shared(cls, shared)}")
    return "\n\n".join(parts) + "\n"


def _key(flag: Flag) -> tuple[str, str, str]:
    """Return what a setting means, wherever it is found."""
    return flag.name, flag.description, flag.default


def _table(flags: Iterable[Flag], served: Iterable[str] | None = None) -> str:
    rows = ["| flag | variable | default | what it does |", "| --- | --- | --- | --- |"]
    for flag in flags:
        what = flag.description + (UP_ONLY if served is not None and flag.name not in served else "")
        cells = f"`{flag.spelling}`", f"`{flag.env}`" if flag.env else "", flag.default, what
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |")
    return "\n".join(rows)


def _shared(cls: type[BaseSettings], flags: list[Flag]) -> str:
    if not flags:
        return ""
    names = ", ".join(f"`--{flag.name.replace('_', '-')}`" for flag in flags)
    prefix = cls.model_config.get("env_prefix", "")
    return f"\n\nAs above, with variables that begin with `{prefix}`: {names}."


if __name__ == "__main__":
    print(page(), end="")
