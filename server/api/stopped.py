"""Report why a reply ended, in llama-server's words."""

from __future__ import annotations

from typing import Literal, TypeAlias

from server.api.choices import ReplyChoice

StopType: TypeAlias = Literal["eos", "word", "limit"]


def why_stopped(choice: ReplyChoice) -> tuple[StopType, str]:
    """Return llama-server's stop_type, and the stop string that ended the reply ("" if none did)."""
    if choice.reason == "length":
        return "limit", ""
    return ("word" if choice.stop_string else "eos"), choice.stop_string or ""
