"""Describe one route in the contract: its body, its answers and its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OPEN = (431, 500)
"""HTTP statuses of errors of routes that need no key."""
READ = (401, 403, 431, 500, 503)
"""Errors of routes that read no body."""
FIND = (*READ, 404)
"""Errors of routes that look something up by its name."""
TEXT_WORK = (*READ, 400, 408, 413, 415, 429)
"""Errors of routes that read a body."""
EMBEDDING_WORK = (*TEXT_WORK, 404, 501)
"""Errors of routes that need a separate model."""
WORK = (*TEXT_WORK, 404, 504)
"""Errors of routes that render or generate."""

UNAUTHORIZED, BUSY = (401,), (429, 503)
"""Statuses of errors that have a header: WWW-Authenticate, Retry-After."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The contract for one method of one path."""

    id: str
    summary: str
    answer: str
    """Description of the successful answer."""
    description: str = ""
    parameters: Sequence[Mapping[str, Any]] = ()
    body: str | Mapping[str, Any] | None = None
    """The schema of the request, or its name."""
    body_description: str = ""
    """When the body is required; empty: always."""
    answers: Sequence[str] | Mapping[str, Any] = ()
    """The schema of the answer, or the names of its possible schemas."""
    event: str | Mapping[str, Any] = ""
    """For a stream: the schema of an event, or its name."""
    status: int = 200
    """HTTP status of success."""
    other: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Schemas of answers that are not JSON, by media type."""
    errors: Sequence[int] = WORK
    special: Mapping[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    """Responses that say more than the usual error, by status."""
    public: bool = False
    """True if the route needs no key."""

    def as_openapi(self, path: str) -> dict[str, Any]:
        """Return the operation in OpenAPI's format. The shape of its errors depends on the path."""
        answers: dict[str, Any] = {"operationId": self.id, "summary": self.summary}
        if self.description:
            answers["description"] = self.description
        if self.public:
            answers["security"] = []
        if self.parameters:
            answers["parameters"] = list(self.parameters)
        if self.body is not None:
            needed = {"description": self.body_description} if self.body_description else {"required": True}
            content = {"application/json": {"schema": _schema_reference(self.body)}}
            answers["requestBody"] = {**needed, "content": content}
        errors = {
            status: {"$ref": f"#/components/responses/{_error_reference(path, status)}"}
            for status in self.errors
        }
        responses = {
            self.status: {"description": self.answer, "content": self._content()},
            **errors,
            **self.special,
        }
        return {**answers, "responses": {str(status): responses[status] for status in sorted(responses)}}

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if self.answers:
            named = isinstance(self.answers, Sequence)
            options = [_schema_reference(name) for name in self.answers] if named else [self.answers]
            content["application/json"] = {"schema": options[0] if len(options) == 1 else {"oneOf": options}}
        if self.event:
            content["text/event-stream"] = {"schema": _schema_reference(self.event)}
        return content | dict(self.other)


def _schema_reference(kind: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"$ref": f"#/components/schemas/{kind}"} if isinstance(kind, str) else kind


def _error_reference(path: str, status: int) -> str:
    """Return the name of the contract's response for an error with this status on this path."""
    prefix = "Messages" if path.startswith("/v1/messages") else ""
    return prefix + ("Unauthorized" if status in UNAUTHORIZED else "Busy" if status in BUSY else "Error")
