"""Where the time goes, by cProfile, which makes small functions look larger."""

from __future__ import annotations

import cProfile
from collections.abc import Collection
from pathlib import Path
from types import CodeType

TOP = 15  # functions


def by_own_time(profile: cProfile.Profile, n: int, unit: str, without: Collection[str]) -> str:
    """The functions in which most of the time is spent, a line for each, by n units of work. without: files
    whose functions are left out."""
    entries = [e for e in profile.getstats() if isinstance(e.code, str) or e.code.co_filename not in without]
    lines = [f"own µs/{unit}  calls/{unit}  function"]
    for entry in sorted(entries, key=lambda e: -e.inlinetime)[:TOP]:
        own_us, calls = 1e6 * entry.inlinetime / n, entry.callcount / n
        lines.append(f"{own_us:11.1f}  {calls:10.1f}  {_place(entry.code)}")
    return "\n".join(lines)


def _place(code: CodeType | str) -> str:
    if isinstance(code, str):
        return code
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.name}:{code.co_firstlineno} {code.co_qualname}"
