"""Says what of a request is left out: in the response each time, in the log once for each type."""

from __future__ import annotations

import logging

logger = logging.getLogger("duo.api")

_logged: set[str] = set()
"""Types of tools that the log has named."""
_MOST_LOGGED = 64
"""Types: whoever invents more of them does not fill the log."""


def left_out_tool(type: str, place: str) -> str:
    """Return the words for a tool that only its inventor's servers can run.

    Args:
        type: of the tool.
        place: of the tool in the request, such as tools.3.
    """
    if type not in _logged and len(_logged) < _MOST_LOGGED:
        _logged.add(type)
        logger.warning("requests offer the tool %.80r, which this server cannot run: it is left out", type)
    return f"{place}: {type} is left out, since this server runs no tools itself"
