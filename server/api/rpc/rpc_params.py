"""The params of JSON-RPC calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import field_validator
from starlette.requests import Request

from server.api.body import Body, Neutral
from server.api.completions.completion_request import CompletionRequest, Pieces
from server.api.generation_fields import UNSUPPORTED
from server.api.incoming import check_model, salted, validated
from server.api.rpc.protocol import Given, by_name
from server.api.served import Served


class Params(Body):
    """positions: names of params that may be given by position."""

    positions: ClassVar[Sequence[str]] = ()


P = TypeVar("P", bound=Params)


class InitParams(Params):
    """Any model but the one that is loaded is refused; other params are ignored."""

    model: str | None = None


class TokenizeParams(Params):
    positions = ("text",)

    text: str


class HandleParams(Params):
    positions = ("handle",)

    handle: str


class CompletionParams(CompletionRequest):
    """A legacy completion of one prompt. n_predict absent or negative: until the context ends."""

    tfs_z: float = 1.0
    penalize_nl: bool = True

    unsupported: ClassVar[Neutral] = {
        **UNSUPPORTED,
        "stream": (False,),
        "stream_options": (),
        "n": (1,),
        "best_of": (1,),
        "echo": (False,),
        "timings_per_token": (False,),
    }

    @field_validator("prompt")
    @classmethod
    def _prompts_are_texts_or_ids(cls, given: str | list[Any]) -> str | list[Any]:
        parts = [given] if isinstance(given, str) else given
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
        return [[self.prompt] if isinstance(self.prompt, str) else self.prompt]

    @property
    def max_new_tokens(self) -> int | None:
        n = self.max_tokens if self.n_predict is None else self.n_predict
        return None if n is None or n < 0 else n

    def contradiction(self) -> tuple[str, str] | None:
        """Penalties count new lines like all tokens, as in llama.cpp today."""
        if "prompt" not in self.model_fields_set:
            return "prompt", "required"
        penalised = (self.repeat_penalty or 1.0) != 1.0 or self.presence_penalty or self.frequency_penalty
        if penalised and not self.penalize_nl:
            return "penalize_nl", "must be true beside penalties: they count new lines like all tokens"
        return super().contradiction()


def params_of(form: type[P], given: Given) -> P:
    """Raises InvalidRequestError that names the param."""
    return validated(form, by_name(given, form.positions))


def completion_params(request: Request, served: Served, given: Given) -> CompletionParams:
    """Raises InvalidRequestError that names the param."""
    body = validated(CompletionParams, salted(request, by_name(given, ("prompt", "n_predict"))))
    check_model(served, body.model)
    return body
