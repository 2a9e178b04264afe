"""What a message says."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from server.api.body import Body


class TextPart(Body):
    type: Literal["text"]
    text: str


Content: TypeAlias = str | Annotated[list[TextPart], Field(fail_fast=True)]


def joined(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
