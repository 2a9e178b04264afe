"""Body of a legacy completion request."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, WithJsonSchema, field_validator

from server.api.body import Neutral
from server.api.generation_fields import UNSUPPORTED, UNTHINKING, GenerationFields
from server.api.pieces import PROMPTS, Pieces, apart, are_pieces, unwrapped

MAX_PROMPTS = 32
MAX_REPLIES = 64
"""Maximum replies to all prompts of one request."""
MAX_LOGPROBS = 5


class CompletionRequest(GenerationFields):
    """POST /v1/completions."""

    prompt: Annotated[str | list[Any], WithJsonSchema(PROMPTS)] = ""
    """A text, token ids, both mixed in one list, or a list of such prompts.

    A list that contains an id is one prompt. A text may also be given as the prompt_string of an object. Text
    that spells a control token is read as that token. The model's BOS is added, except to a prompt that
    begins with an id. An empty text is the beginning of a document.
    """
    suffix: str | None = None
    """The text that follows the reply. Needs a model that was trained to fill in the middle."""
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    """As in a chat completion, except 0: the prompt is evaluated, and the reply is empty."""
    echo: bool = False
    """Begin the text with the prompt, and the logprobs with the prompt's.

    An echo with logprobs cannot be streamed, and reuses no cached prompt.
    """
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Number of likeliest tokens returned beside each token."""

    unsupported: ClassVar[Neutral] = {**UNSUPPORTED, **UNTHINKING, "post_sampling_probs": (False,)}

    @field_validator("prompt", mode="before")
    @classmethod
    def _objects_with_texts_are_texts(cls, given: Any) -> Any:
        return unwrapped(given)

    @field_validator("prompt")
    @classmethod
    def _prompts_are_texts_or_ids(cls, given: str | list[Any]) -> str | list[Any]:
        prompts = apart(given)
        if not prompts or not all(are_pieces(prompt) for prompt in prompts):
            raise ValueError("must be a text, a list of token ids, or a list of such prompts")
        if len(prompts) > MAX_PROMPTS:
            raise ValueError(f"at most {MAX_PROMPTS} prompts at once")
        return given

    @property
    def prompts(self) -> list[Pieces]:
        return apart(self.prompt)

    @property
    def n_logprobs(self) -> int | None:
        if self.logprobs is None:
            return self.n_probs or None
        return max(self.logprobs, self.n_probs or 0)

    @property
    def reports_prompt(self) -> bool:
        return self.echo and self.n_logprobs is not None

    @property
    def reports_reply(self) -> bool:
        return self.max_tokens != 0

    def contradiction(self) -> tuple[str, str] | None:
        if self.reports_prompt and (self.stream or self.n_beams > 1):
            return "echo", "logprobs of the prompt are neither streamed nor returned by a beam search"
        if len(self.prompts) * self.n_generated > MAX_REPLIES:
            return "prompt", f"at most {MAX_REPLIES} replies at once, to all prompts together"
        return super().contradiction()
