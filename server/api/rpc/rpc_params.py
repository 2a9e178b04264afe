"""Params of JSON-RPC calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, WithJsonSchema, field_validator
from starlette.requests import Request

from server.api.body import Body, Neutral
from server.api.completions.completion_request import CompletionRequest
from server.api.generation_fields import UNSUPPORTED, UNTHINKING
from server.api.pieces import ONE_PROMPT, Pieces
from server.api.rpc.protocol import Given, by_name
from server.api.stages.validate import salted, validated

B = TypeVar("B", bound=Body)


class InitParams(Body):
    """Params of init. Unknown params are ignored."""

    model: str | None = None
    """Every model except the loaded one is refused."""


class TokenizeParams(Body):
    text: str
    """Text that spells a control token is read as that token."""


class HandleParams(Body):
    handle: str


class CompletionParams(CompletionRequest):
    """A legacy completion of one prompt. Without n_predict, the reply may fill the context."""

    model_config = ConfigDict(json_schema_extra={"required": ["prompt"]})

    prompt: Annotated[str | list[Any], WithJsonSchema(ONE_PROMPT)] = ""
    """A text, token ids, or a list of both."""
    tfs_z: Annotated[float, WithJsonSchema({"const": 1})] = 1.0
    """Only 1 is accepted: llama.cpp no longer has tail-free sampling."""
    penalize_nl: bool = True
    """true: penalties also count line breaks. false is refused if there are penalties."""

    unsupported: ClassVar[Neutral] = {
        **UNSUPPORTED,
        **UNTHINKING,
        "stream": (False,),
        "stream_options": (),
        "n": (1,),
        "best_of": (1,),
        "echo": (False,),
        "timings_per_token": (False,),
        "return_progress": (False,),
    }

    @field_validator("prompt")
    @classmethod
    def _prompts_are_texts_or_ids(cls, given: str | list[Any]) -> str | list[Any]:
        parts: list[Any] = given if isinstance(given, list) else [given]
        if not parts or not all(isinstance(p, str | int) and not isinstance(p, bool) for p in parts):
            raise ValueError("must be a text, a list of token ids, or a list of texts and token ids")
        return given

    @field_validator("tfs_z")
    @classmethod
    def _tail_free_sampling_is_off(cls, z: float) -> float:
        if z != 1.0:
            raise ValueError("must be 1: llama.cpp does not have tail-free sampling any more")
        return z

    @property
    def prompts(self) -> list[Pieces]:
        return [self.prompt if isinstance(self.prompt, list) else [self.prompt]]

    def contradiction(self) -> tuple[str, str] | None:
        """Return a missing or contradictory field, and why it is refused; None if there is none."""
        if "prompt" not in self.model_fields_set:
            return "prompt", "required"
        penalised = (self.repeat_penalty or 1.0) != 1.0 or self.presence_penalty or self.frequency_penalty
        if penalised and not self.penalize_nl:
            return "penalize_nl", "must be true beside penalties: they count new lines like all tokens"
        return super().contradiction()


POSITIONS: dict[type[Body], Sequence[str]] = {
    TokenizeParams: ("text",),
    HandleParams: ("handle",),
    CompletionParams: ("prompt", "n_predict"),
}
"""For each kind of params, the names of those that may be given by position, in order."""


def params_of(request: Request, form: type[B], given: Given) -> B:
    """Return params, given by name or by position, as a validated `form`.

    Raises:
        InvalidRequestError: A param is invalid; the error names it.
    """
    return validated(form, salted(request, by_name(given, POSITIONS.get(form, ()))))
