"""The body of a chat completion request: what is honoured, and what is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field

from server.api.body import Body, Count, LastTokens, Share
from server.api.sampling_fields import SamplingFields, not_for_beams
from server.engine.beams import MAX_BEAMS
from server.engine.request import Exactness

MAX_STOPS = 32
MAX_SALT = 256
MAX_CHOICES = 8
"""Most replies to one request, those included that best_of throws away."""
MAX_TOP_LOGPROBS = 20


class TextPart(Body):
    type: Literal["text"]
    text: str


class FunctionCall(Body):
    name: str
    arguments: str = "{}"


class ToolCall(Body):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


Content: TypeAlias = str | list[TextPart]


def joined(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class ChatMessage(Body):
    """content: a string, text parts (joined), or null."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def for_template(self) -> dict[str, Any]:
        """What chat templates expect; they know no developer role."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": joined(self.content or "")}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class StreamOptions(Body):
    include_usage: bool = False


class Speculative(Body):
    """What one request says about drafts; the server's --draft-max bounds n_max. See engine/request.py."""

    model_config = ConfigDict(extra="forbid", strict=True)

    n_max: Count | None = None
    n_min: Count = 0
    p_min: Share = 0.0
    exactness: Exactness | None = None
    drafters: Annotated[list[str], Field(max_length=64)] | None = None


class Prediction(Body):
    """OpenAI's: what the client expects much of the reply to be."""

    type: Literal["content"]
    content: Content


Stop: TypeAlias = str | Annotated[list[str], Field(max_length=MAX_STOPS)]
Choices: TypeAlias = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
TopLogprobs: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


class ChatRequest(SamplingFields):
    """POST /v1/chat/completions. Names and meanings are OpenAI's where OpenAI has the field, llama-server's
    where that has it; speculative is duo's."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Stop | None = None
    n: Choices = 1
    best_of: Choices | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    n_probs: TopLogprobs | None = None
    return_tokens: bool = False
    timings_per_token: bool = False
    grammar: str | None = None
    prediction: Prediction | None = None
    speculative: bool | Speculative | None = None
    context_shift: bool = False
    n_keep: LastTokens = 0
    n_beams: Annotated[int, Field(ge=0, le=MAX_BEAMS)] = 1
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None

    @property
    def salt(self) -> str:
        """Who may share what is cached of this request."""
        return self.cache_salt or ""

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def n_generated(self) -> int:
        """How many replies are generated, n of which are returned."""
        return self.best_of or self.n

    @property
    def n_logprobs(self) -> int | None:
        """How many likeliest tokens the reply tells beside each token; None: no logprobs at all."""
        if self.logprobs:
            return max(self.top_logprobs or 0, self.n_probs or 0)
        return self.n_probs or None

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def contradiction(body: ChatRequest) -> tuple[str, str] | None:
    """The first field that does not fit the others, and why. Each by itself is valid."""
    if body.best_of is not None and body.best_of < body.n:
        return "best_of", f"must be at least n, which is {body.n}"
    if body.stream and body.n_generated > body.n:
        return "best_of", "the best replies are known at the end: they cannot be streamed"
    if body.top_logprobs and not body.logprobs:
        return "top_logprobs", "logprobs must be true"
    if body.max_new_tokens is not None and (body.min_tokens or 0) > body.max_new_tokens:
        return "min_tokens", f"must be at most max_tokens, which is {body.max_new_tokens}"
    if body.n_beams > 1 and (found := _not_with_beams(body)) is not None:
        return "n_beams", found
    asked = body.speculative
    if isinstance(asked, Speculative) and asked.n_max is not None and asked.n_min > asked.n_max:
        return "speculative.n_min", f"must be at most n_max, which is {asked.n_max}"
    return None


def _not_with_beams(body: ChatRequest) -> str | None:
    if body.n_generated > 1:
        return "a beam search has one result: n and best_of must be 1"
    if body.context_shift:
        return "a beam search cannot outgrow the context: context_shift must be false"
    name = not_for_beams(body)
    return f"{name} has no meaning in a beam search" if name else None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n_predict": (-1,),
    "min_keep": (0,),
    "cache_prompt": (True,),
    "json_schema": (),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
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
