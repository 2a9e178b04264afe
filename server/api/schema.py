"""The body of a chat completion request: what is honoured, and what is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from server.engine.request import Speculation

MAX_STOPS = 32


class _Body(BaseModel):
    """Unknown fields are ignored; an explicit null is the same as an absent field; "1" is no number."""

    model_config = ConfigDict(extra="ignore", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}  # pyright: ignore
        return data


class TextPart(_Body):
    type: Literal["text"]
    text: str


class FunctionCall(_Body):
    name: str
    arguments: str = "{}"


class ToolCall(_Body):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(_Body):
    """content: a string, text parts (joined), or null."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def for_template(self) -> dict[str, Any]:
        """What chat templates expect; they know no developer role."""
        role = "system" if self.role == "developer" else self.role
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        message: dict[str, Any] = {"role": role, "content": content if content is not None else ""}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class StreamOptions(_Body):
    include_usage: bool = False


class Speculative(_Body):
    """n_max: most drafted tokens verified per step; the server's --draft-max bounds it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    n_max: Annotated[int, Field(ge=0)] | None = None


Stop: TypeAlias = str | Annotated[list[str], Field(max_length=MAX_STOPS)]


class ChatRequest(_Body):
    """POST /v1/chat/completions. Names and meanings are OpenAI's; top_k, min_p and speculative are duo's."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    top_k: int | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    seed: int | None = None
    stop: Stop | None = None
    speculative: bool | Speculative | None = None

    @field_validator("seed")
    @classmethod
    def _seed_has_64_bits(cls, seed: int | None) -> int | None:
        if seed is not None and not -(1 << 63) <= seed < 1 << 64:
            raise ValueError("must be an integer of 64 bits")
        return seed

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def speculation(self) -> Speculation:
        """As GenerationRequest.speculation."""
        if isinstance(self.speculative, Speculative):
            return Speculation(n_max=self.speculative.n_max)
        return Speculation(n_max=0 if self.speculative is False else None)


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "n_beams": (0, 1),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "n_probs": (0,),
    "logit_bias": ({}, []),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repeat_penalty": (1,),
    "typical_p": (1,),
    "top_n_sigma": (-1, 0),
    "dynatemp_range": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "mirostat": (0,),
    "samplers": (),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "n_keep": (0, -1),
    "n_predict": (-1,),
    "cache_prompt": (True,),
    "timings_per_token": (False,),
    "return_tokens": (False,),
    "grammar": ("",),
    "json_schema": (),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "chat_template_kwargs": ({},),
}
"""Known fields that are not honoured yet, and the values at which ignoring them changes nothing."""


def refused(data: dict[str, Any]) -> str | None:
    """The first field that asks for something this server cannot do."""
    for name, neutral in NEUTRAL.items():
        value = data.get(name)
        if value is not None and value not in neutral:
            return name
    return None
