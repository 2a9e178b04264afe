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
    "priority": (0,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "guided_whitespace_pattern": (),
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
    """Most drafted tokens verified per step, 0 for none. The server's --draft-max bounds it."""
    n_min: Count = 0
    """Fewer drafted tokens than that are not verified. At most n_max."""
    p_min: Share = 0.0
    """Guesses on paths less likely than this are left out."""
    exactness: Exactness | None = None
    """Width-stable: every step has the same number of rows, so that not even the last bits of the logits
    depend on drafts."""
    drafters: Annotated[list[str], Field(max_length=64, fail_fast=True)] | None = None
    """Only guesses of these drafters; none of an empty list."""

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


Most: TypeAlias = Annotated[
    int, Field(ge=-1, json_schema_extra={"not": {"const": 0}}), AfterValidator(_something)
]
"""Most tokens of a reply."""


class SharedFields(SamplingFields):
    """Those that have one name and meaning in every form: OpenAI's, else llama-server's; speculative is
    duo's. id_slot: -1 for any. t_max_predict_ms: milliseconds after the first token at which a reply that has
    begun a second line ends; 0 or less: never. n_indent: a line after the first that begins with fewer spaces
    or tabs ends the reply. lora: scales of adapters, which have to be those of the start; empty: nobody
    asks."""

    model: str | None = None
    """The served model's id, or "default", or absent."""
    stream: bool = False
    prediction: PredictedContent | None = None
    """What much of the reply is expected to be; it is offered as a draft."""
    speculative: bool | Speculative | None = None
    """false verifies no drafts; an object says which drafts are verified."""
    n_keep: LastTokens = 0
    """How many tokens of the prompt context_shift never forgets; -1 all of them. A BOS is kept besides. At
    most the context less 4."""
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None
    """What is cached of this request is shared with requests of the same salt only, so that nobody else
    can tell by the time to the first token what was asked."""
    cache_prompt: bool = True
    """Whether what is cached is used for the prompt. The prompt is cached for others in any case."""
    id_slot: LastTokens = -1
    """The slot for it, see /slots, which is waited for; -1 is the one that suits best."""
    t_max_predict_ms: int = 0
    """A reply that has begun a second line ends, with length, so many milliseconds after its first token.
    0 or less: never."""
    n_indent: Count = 0
    """A line after the first that begins with fewer spaces or tabs ends the reply, with length, and is
    left out."""
    lora: Annotated[list[AdapterScale], Field(max_length=MAX_ADAPTERS, fail_fast=True)] = Field(
        default_factory=list[AdapterScale]
    )
    """Scales of adapters, see /lora-adapters. Others than those of the start are refused; an empty list
    says nothing."""
    timings_per_token: bool = False
    """`timings` so far in every chunk with text."""
    return_progress: bool = False
    """Chunks before the first text tell in `prompt_progress` how far the prompt is evaluated."""

    @property
    def salt(self) -> str:
        return self.cache_salt or ""


class GenerationFields(SharedFields, StructuredFields):
    """Those of completions, with OpenAI's names, else llama-server's."""

    stream_options: StreamOptions | None = None
    max_tokens: Most | None = None
    """Absent or -1, as --predict says, else the reply may go on until the context ends."""
    n_predict: Annotated[int, Field(ge=-1)] | None = None
    """llama-server's name for max_tokens. For 0 the prompt is evaluated, and one token generated."""
    stop: Stop | None = None
    """The reply ends before the first of these strings."""
    n: Choices = 1
    """How many replies. The first is what n = 1 gives; the others have seeds of their own, made from the
    request's."""
    best_of: Choices | None = None
    """Generate so many and return the n with the largest mean logprob per token, the largest first. By
    default n. More than n cannot be streamed."""
    n_probs: TopLogprobs | None = None
    """llama-server's name; above 0 the same as logprobs with so many top_logprobs."""
    return_tokens: bool = False
    """Token ids beside the text."""
    return_sources: bool = False
    """Who guessed which token of the content, in `sources`."""
    post_sampling_probs: bool = False
    """Instead of logprobs the probabilities that the token was drawn with, after all samplers, as `prob`
    and `top_probs`; tokens that could not be drawn are not listed. Not together with mirostat."""
    context_shift: bool | None = None
    """By default as --context-shift says. A reply that reaches the end of the context goes on: half of the
    tokens after the first n_keep are forgotten, each time. Without max_tokens only a stop ends it. The
    prompt has to fit the context all the same."""
    n_beams: Annotated[int, Field(ge=0, le=MAX_BEAMS)] = 1
    """2 or more: a beam search of that many beams for the likeliest reply, by the mean logprob of its
    tokens, instead of drawing one. logit_bias, ignore_eos, min_tokens and grammar count; temperature,
    seed, filters and drafts do not. Streamed, text comes once all beams agree on it. Not together with n
    or best_of above 1, context_shift, penalties, dry, xtc or mirostat. A server with few sequences refuses
    many beams."""

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
        if self.repeat_penalty is not None and self.repetition_penalty not in (None, self.repeat_penalty):
            return "repetition_penalty", f"means the same as repeat_penalty, which is {self.repeat_penalty}"
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
