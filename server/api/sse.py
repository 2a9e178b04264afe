"""Server-sent events."""

from __future__ import annotations

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
"""The last one of OpenAI's completions."""


def event(payload: Any) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"
