"""Body of a completion in llama-server's own format."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from server.api.body import Neutral
from server.api.completions.completion_request import CompletionRequest
from server.api.generation_fields import UNSUPPORTED, UNTHINKING, Choices

MAX_FIELDS = 256


class NativeRequest(CompletionRequest):
    """POST /completion. Fields are those of a legacy completion, and llama-server's own."""

    response_fields: Annotated[list[str], Field(max_length=MAX_FIELDS, fail_fast=True)] | None = None
    """Fields to keep in the reply or a stream's last chunk; a/b is field b within a. Empty: all fields."""
    n_cmpl: Choices | None = None
    """Another name of n."""

    unsupported: ClassVar[Neutral] = {**UNSUPPORTED, **UNTHINKING, "echo": (False,)}

    @property
    def with_tokens(self) -> bool:
        return self.return_tokens or self.stream

    def contradiction(self) -> tuple[str, str] | None:
        if self.n_cmpl is not None:
            if self.n not in (1, self.n_cmpl):
                return "n_cmpl", f"means the same as n, which is {self.n}"
            self.n = self.n_cmpl
        return super().contradiction()
