"""The body of a legacy completion request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias, cast

from pydantic import Field, field_validator

from server.api.generation_fields import GenerationFields

MAX_PROMPTS = 32
MAX_REPLIES = 64
"""Most replies to all prompts of one request."""
MAX_LOGPROBS = 5
MAX_TOKENS = 16
"""OpenAI's default of max_tokens here."""

Pieces: TypeAlias = Sequence[str | int]
"""One prompt: texts and token ids, in turn."""


class CompletionRequest(GenerationFields):
    """POST /v1/completions. prompt: a text, token ids, both mixed, or a list of such prompts. n_predict:
    llama-server's name for max_tokens, -1 for the rest of the context."""

    prompt: str | list[Any] = ""
    suffix: str | None = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    n_predict: Annotated[int, Field(ge=-1)] | None = None

    @field_validator("prompt")
    @classmethod
    def _prompts_are_texts_or_ids(cls, given: str | list[Any]) -> str | list[Any]:
        prompts = _prompts(given)
        if not prompts or not all(_is_prompt(prompt) for prompt in prompts):
            raise ValueError("must be a text, a list of token ids, or a list of such prompts")
        if len(prompts) > MAX_PROMPTS:
            raise ValueError(f"at most {MAX_PROMPTS} prompts at once")
        return given

    @field_validator("n_predict")
    @classmethod
    def _something_is_predicted(cls, n: int | None) -> int | None:
        if n == 0:
            raise ValueError("must be -1, for as many as fit, or at least 1")
        return n

    @property
    def prompts(self) -> list[Pieces]:
        return _prompts(self.prompt)

    @property
    def n_logprobs(self) -> int | None:
        if self.logprobs is None:
            return self.n_probs or None
        return max(self.logprobs, self.n_probs or 0)

    @property
    def max_new_tokens(self) -> int | None:
        if self.n_predict is not None:
            return None if self.n_predict < 0 else self.n_predict
        return self.max_tokens or MAX_TOKENS

    def contradiction(self) -> tuple[str, str] | None:
        if self.echo and self.n_logprobs is not None:
            return "echo", "there are no logprobs of the prompt: not together with logprobs"
        if self.max_tokens is not None and self.n_predict not in (None, self.max_tokens):
            return "n_predict", f"means the same as max_tokens, which is {self.max_tokens}"
        if len(self.prompts) * self.n_generated > MAX_REPLIES:
            return "prompt", f"at most {MAX_REPLIES} replies at once, to all prompts together"
        return super().contradiction()


def _prompts(given: str | list[Any]) -> list[Pieces]:
    """As in llama-server: a list with an id in it is one prompt, any other list several prompts."""
    if isinstance(given, str):
        return [[given]]
    if any(isinstance(item, int) for item in given):
        return [given]
    return [[item] if isinstance(item, str) else item for item in given]


def _is_prompt(pieces: object) -> bool:
    if not isinstance(pieces, list) or not pieces:
        return False
    return all(isinstance(p, str | int) and not isinstance(p, bool) for p in cast(list[object], pieces))
