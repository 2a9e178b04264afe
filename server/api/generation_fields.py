"""The fields that all generating routes share."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from server.api.body import Body, Content, Count, Finite, LastTokens, Neutral, Share
from server.api.sampling_fields import SamplingFields, not_for_beams
from server.api.structured import StructuredFields, incoherent
from server.engine.beams import MAX_BEAMS
from server.engine.request import Exactness

MAX_STOPS = 1024
"""Stop strings: each is looked for in every piece of text, for 0.2 ms if there are 1024 of 12 characters."""
MAX_SALT = 256
MAX_ADAPTERS = 64
"""Scales that a request may name."""
MAX_CHOICES = 8
"""Most replies to one prompt, those included that best_of throws away."""
MAX_TOP_LOGPROBS = 20


UNSUPPORTED: Neutral = {
    "min_keep": (0,),
    "n_discard": (0,),
    "n_cache_reuse": (0,),
    "adaptive_target": (-1,),
    "grammar_lazy": (False,),
    "grammar_triggers": ([],),
}
"""See Body.unsupported."""
UNTHINKING: Neutral = {"reasoning_budget": (-1,), "reasoning_budget_tokens": (-1,)}
"""Of forms whose replies have no thoughts."""


class StreamOptions(Body):
    include_usage: bool = False


class Speculative(Body):
    """Drafting for one request; n_max is bounded by --draft-max. See engine/request.py."""

    model_config = ConfigDict(extra="forbid", strict=True)

    n_max: Count | None = None
    n_min: Count = 0
    p_min: Share = 0.0
    exactness: Exactness | None = None
    drafters: Annotated[list[str], Field(max_length=64, fail_fast=True)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_is_enough(cls, data: Any) -> Any:
        """Keeps one unknown field: pydantic reports each."""
        if not isinstance(data, dict):
            return data
        given = cast(dict[str, Any], data)
        unknown = islice((name for name in given if name not in cls.model_fields), 1)
        return {name: given[name] for name in (*cls.model_fields, *unknown) if name in given}


class AdapterScale(Body):
    """Of a LoRA adapter, by its place among the server's."""

    id: Count
    scale: Finite


class PredictedContent(Body):
    """OpenAI's prediction: text that the reply is expected to repeat."""

    type: Literal["content"]
    content: Content


Stop: TypeAlias = str | Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)]
Choices: TypeAlias = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
TopLogprobs: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


def _something(n: int) -> int:
    if n == 0:
        raise ValueError("must be -1, for as many as fit, or at least 1")
    return n


Most: TypeAlias = Annotated[int, Field(ge=-1), AfterValidator(_something)]
"""Most tokens of a reply."""


class SharedFields(SamplingFields):
    """Those that have one name and meaning in every form: OpenAI's, else llama-server's; speculative is
    duo's. id_slot: -1 for any. t_max_predict_ms: milliseconds after the first token at which a reply that has
    begun a second line ends; 0 or less: never. n_indent: a line after the first that begins with fewer spaces
    or tabs ends the reply. lora: scales of adapters, which have to be those of the start; empty: nobody
    asks."""

    model: str | None = None
    stream: bool = False
    prediction: PredictedContent | None = None
    speculative: bool | Speculative | None = None
    n_keep: LastTokens = 0
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None
    cache_prompt: bool = True
    id_slot: LastTokens = -1
    t_max_predict_ms: int = 0
    n_indent: Count = 0
    lora: Annotated[list[AdapterScale], Field(max_length=MAX_ADAPTERS, fail_fast=True)] = Field(
        default_factory=list[AdapterScale]
    )
    timings_per_token: bool = False
    return_progress: bool = False

    @property
    def salt(self) -> str:
        return self.cache_salt or ""


class GenerationFields(SharedFields, StructuredFields):
    """Those of completions, with OpenAI's names, else llama-server's."""

    stream_options: StreamOptions | None = None
    max_tokens: Most | None = None
    n_predict: Annotated[int, Field(ge=-1)] | None = None
    stop: Stop | None = None
    n: Choices = 1
    best_of: Choices | None = None
    n_probs: TopLogprobs | None = None
    return_tokens: bool = False
    return_sources: bool = False
    post_sampling_probs: bool = False
    context_shift: bool | None = None
    n_beams: Annotated[int, Field(ge=0, le=MAX_BEAMS)] = 1

    unsupported: ClassVar[Neutral] = UNSUPPORTED

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def with_tokens(self) -> bool:
        return self.return_tokens

    @property
    def continues(self) -> bool:
        """Whether the prompt may hold an earlier reply."""
        return True

    @property
    def tells_prompt(self) -> bool:
        """Whether logprobs of the prompt are told."""
        return False

    @property
    def tells_reply(self) -> bool:
        """Whether tokens of the reply are told: the engine draws one at least."""
        return True

    @property
    def n_generated(self) -> int:
        """Replies generated per prompt; n of them are returned."""
        return self.best_of or self.n

    @property
    def n_logprobs(self) -> int | None:
        """Likeliest tokens to report per token; None: no logprobs."""
        return self.n_probs or None

    @property
    def max_new_tokens(self) -> int | None:
        """None: as the server says, else until the context ends. For no tokens at all there is one, as in
        llama-server: the prompt is evaluated."""
        given = self.max_tokens if self.max_tokens is not None else self.n_predict
        return None if given is None or given < 0 else max(1, given)

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def contradiction(self) -> tuple[str, str] | None:
        if self.max_tokens is not None and self.n_predict not in (None, self.max_tokens):
            return "n_predict", f"means the same as max_tokens, which is {self.max_tokens}"
        if self.post_sampling_probs and self.mirostat:
            return "post_sampling_probs", "mirostat has no probabilities that could be told"
        if self.best_of is not None and self.best_of < self.n:
            return "best_of", f"must be at least n, which is {self.n}"
        if self.stream and self.n_generated > self.n:
            return "best_of", "the best replies are known at the end: they cannot be streamed"
        if self.max_new_tokens is not None and (self.min_tokens or 0) > self.max_new_tokens:
            return "min_tokens", f"must be at most max_tokens, which is {self.max_new_tokens}"
        if self.n_beams > 1 and (found := _not_with_beams(self)) is not None:
            return "n_beams", found
        if (found := incoherent(self)) is not None:
            return found
        asked = self.speculative
        if isinstance(asked, Speculative) and asked.n_max is not None and asked.n_min > asked.n_max:
            return "speculative.n_min", f"must be at most n_max, which is {asked.n_max}"
        return None


def _not_with_beams(body: GenerationFields) -> str | None:
    if body.n_generated > 1:
        return "a beam search has one result: n and best_of must be 1"
    if body.context_shift:
        return "a beam search cannot outgrow the context: context_shift must be false"
    name = not_for_beams(body)
    return f"{name} has no meaning in a beam search" if name else None
