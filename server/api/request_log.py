"""Log one line per request: path, status, times and tokens; prompts only with --log-prompts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from server.engine.request_account import RequestAccount

logger = logging.getLogger("duo.requests")

PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Paths that monitors request every few seconds. They are logged only when they fail."""
MAX_LOGGED_BYTES = 1 << 16
"""Maximum bytes of a body in the log."""


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Settings of the request log."""

    requests: bool = False  # log a line for each request
    prompts: bool = False  # also log the bodies


@dataclass(slots=True)
class Line:
    """The log line of one request."""

    method: str
    path: str
    account: RequestAccount
    status: int | None = None  # None until the reply has begun
    first_ms: float = 0.0  # milliseconds from the request to the reply's first byte
    ms: float = 0.0  # milliseconds from the request to the reply's end
    key: str = ""  # a short name that does not reveal the API key
    body: bytes = b""

    def fields(self) -> dict[str, Any]:
        """Return the fields of a JSON log."""
        account = self.account
        fields: dict[str, Any] = {
            "request_id": account.id,
            "method": self.method,
            "path": quote(self.path),
            "status": 499 if self.status is None else self.status,
            "first_ms": round(self.first_ms, 1),
            "ms": round(self.ms, 1),
        }
        if self.key:
            fields["key"] = self.key
        if account.n_generations:
            fields |= {
                "prompt_tokens": account.n_prompt,
                "cached_tokens": account.n_cached,
                "completion_tokens": account.n_predicted,
                "drafted_tokens": account.n_drafted,
                "accepted_tokens": account.n_accepted,
            }
        if self.body:
            fields["body"] = self.body[:MAX_LOGGED_BYTES].decode(errors="replace")
        return fields

    def log(self) -> None:
        """Log the line, unless a monitor made the request and it succeeded."""
        if self.path in PROBES and self.status == 200:
            return
        fields = self.fields()
        logger.info(_line_text(fields), extra={"fields": fields})


def _line_text(fields: dict[str, Any]) -> str:
    text = f"{fields['method']} {fields['path']} {fields['status']} in {fields['ms']:.0f} ms"
    if "prompt_tokens" in fields:
        text += (
            f", prompt {fields['prompt_tokens']} ({fields['cached_tokens']} cached), "
            f"reply {fields['completion_tokens']} "
            f"({fields['accepted_tokens']} of {fields['drafted_tokens']} drafts)"
        )
    text += f", {fields['request_id']}"
    return f"{text}, {fields['body']!r}" if "body" in fields else text
