"""Report tools that are left out of a request: in each response, and in the log once per type."""

from __future__ import annotations

import logging
from collections.abc import Sequence

logger = logging.getLogger("duo.api")

_logged: set[str] = set()
"""Types of tools that have been logged."""
_MOST_LOGGED = 64
"""Maximum types that are logged, so that invented types cannot fill the log."""


def is_for_code(callers: Sequence[str] | None) -> bool:
    """Return True if only code on the API's own servers may call a tool, given the tool's allowed callers."""
    return bool(callers) and "direct" not in (callers or ())


def left_out_for_code(name: str, place: str) -> str:
    """Return a sentence about the tool `name`, which only code may call. `place`: its field."""
    return f"{place}: {name} is left out, since only code may call it, and this server runs none"


def left_out_tool(type: str, place: str) -> str:
    """Return a sentence about a tool that only the API's own servers can run; log each type once.

    Args:
        type: Type of the tool.
        place: Field of the request that holds the tool, such as tools.3.
    """
    if type not in _logged and len(_logged) < _MOST_LOGGED:
        _logged.add(type)
        logger.warning("requests offer the tool %.80r, which this server cannot run: it is left out", type)
    return f"{place}: {type} is left out, since this server runs no tools itself"
