"""Write docs/settings.md to standard output, from the definitions of all settings."""

from __future__ import annotations

from collections.abc import Iterable

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

Each flag overrides an environment variable: `--some-name` is `DUO_SOME_NAME`, unless a heading gives another
prefix. Values with `,…` are lists: separate them by commas, or repeat the flag. Names are llama-server's
where they mean the same. `make docs` generates this page from what `--help` prints."""
UP_ONLY = "; `duo up` only"


def page() -> str:
    """Return the whole page, in Markdown."""
    parts = [HEAD, "## duo up, duo serve"]
    served = set(LeadSettings.model_fields)
    lead: list[Flag] = []
    for title, flags in grouped(UpSettings, SYNONYMS).items():
        parts.append(f"### {title}\n\n{_flag_table(flags, served)}")
        lead += flags
    told = {_meaning_key(flag) for flag in lead}
    for heading, cls in (
        ("duo draft (duo-drafter)", DrafterSettings),
        ("duo lend", LendSettings),
        ("duo chat", ChatSettings),
        ("duo top", TopSettings),
        ("duo probe", ProbeSettings),
        ("duo doctor", DoctorSettings),
    ):
        flags = [flag for group in grouped(cls, SYNONYMS).values() for flag in group]
        own = [flag for flag in flags if _meaning_key(flag) not in told]
        told |= {_meaning_key(flag) for flag in own}
        shared = [flag for flag in flags if flag not in own]
        prefix = cls.model_config.get("env_prefix", "")
        title = heading if prefix == "DUO_" else f"{heading}: variables begin with `{prefix}`"
        parts.append(f"## {title}\n\n{_flag_table(own)}{_shared_flags(shared, lead)}")
    return "\n\n".join(parts) + "\n"


def _meaning_key(flag: Flag) -> tuple[str, str, str]:
    """Return a key that is equal for settings with the same meaning in different programs."""
    return flag.name, flag.description, flag.default


def _flag_table(flags: Iterable[Flag], served: Iterable[str] | None = None) -> str:
    rows = ["| flag | default | what it does |", "| --- | --- | --- |"]
    for flag in flags:
        what = flag.description + (UP_ONLY if served is not None and flag.name not in served else "")
        cells = f"`{flag.spelling}`", flag.default, what
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |")
    return "\n".join(rows)


def _shared_flags(shared: list[Flag], lead: list[Flag]) -> str:
    """Return a sentence about a command's flags that duo up has too, "" if there are none.

    `lead`: All flags of duo up. If most of them are shared, the sentence lists only the others.
    """
    if not shared:
        return ""
    names = {_meaning_key(flag) for flag in shared}
    others = [flag for flag in lead if _meaning_key(flag) not in names]
    if len(others) < len(shared):
        return f"\n\nIt also takes every flag of `duo up` except {_flag_names(others)}."
    return f"\n\nAs above: {_flag_names(shared)}."


def _flag_names(flags: list[Flag]) -> str:
    return ", ".join(f"`--{flag.name.replace('_', '-')}`" for flag in flags)


if __name__ == "__main__":
    print(page(), end="")
