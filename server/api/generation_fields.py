"""Fields that all generating routes share."""

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
"""Maximum stop strings: 1024 of 12 characters take 0.2 ms for each piece of text."""
MAX_SALT = 256
MAX_ADAPTERS = 64
"""Maximum LoRA adapters whose scales a request may set."""
MAX_CHOICES = 8
"""Maximum replies to one prompt, including those that best_of drops."""
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
"""Fields of llama-server and vLLM that are refused unless they change nothing; see Body.unsupported."""
UNTHINKING: Neutral = {"reasoning_budget": (-1,), "reasoning_budget_tokens": (-1,)}
"""Fields that are refused, unless they are -1, on routes whose replies have no thoughts."""


class StreamOptions(Body):
    include_usage: bool = False


class Speculative(Body):
    """Selection of the drafts that are verified for one request. See engine/request.py."""

    model_config = ConfigDict(extra="forbid", strict=True)

    n_max: Count | None = None
    """Maximum drafted tokens verified per step, at most the server's --draft-max; 0: none."""
    n_min: Count = 0
    """Minimum drafted tokens per step, at most n_max. If there are fewer, none is verified."""
    p_min: Share = 0.0
    """Minimum probability of a guess's path; guesses below are dropped."""
    exactness: Exactness | None = None
    """width-stable: all steps have equal numbers of rows, so no bit of the logits depends on drafts."""
    drafters: Annotated[list[str], Field(max_length=64, fail_fast=True)] | None = None
    """Use only guesses of these drafters; an empty list: use no guesses."""

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_is_enough(cls, data: Any) -> Any:
        """Keep only one of many unknown fields, because pydantic would report each."""
        if not isinstance(data, dict):
            return data
        given = cast(dict[str, Any], data)
        unknown = islice((name for name in given if name not in cls.model_fields), 1)
        return {name: given[name] for name in (*cls.model_fields, *unknown) if name in given}


class AdapterScale(Body):
    """Scale of a LoRA adapter; `id` is its index in /lora-adapters."""

    id: Count
    scale: Finite


class PredictedContent(Body):
    """OpenAI's prediction: text that the reply is expected to repeat."""

    type: Literal["content"]
    content: Content


Stop: TypeAlias = str | Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)]
Choices: TypeAlias = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
TopLogprobs: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


def _refuse_zero(n: int) -> int:
    if n == 0:
        raise ValueError("must be -1, for as many as fit, or at least 1")
    return n


Most: TypeAlias = Annotated[
    int, Field(ge=-1, json_schema_extra={"not": {"const": 0}}), AfterValidator(_refuse_zero)
]
"""Maximum tokens of a reply."""


class SharedFields(SamplingFields):
    """Fields with the same meaning in every API, under OpenAI's, llama-server's or duo's own names."""

    model: str | None = None
    """The served model's id, or "default", or absent."""
    stream: bool = False
    prediction: PredictedContent | None = None
    """Text that the reply is expected to repeat in large part; it is offered as a draft."""
    speculative: bool | Speculative | None = None
    """false: verify no drafts. An object selects the drafts that are verified."""
    n_keep: LastTokens = 0
    """Number of tokens at the prompt's beginning that context_shift never drops; -1: the whole prompt.

    A BOS is kept in addition. The maximum is the context's tokens minus 4.
    """
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None
    """Share this request's cached prompt only with requests of the same salt.

    Otherwise the time to the first token could tell others what was asked.
    """
    cache_prompt: bool = True
    """false: do not use cached prompts. The prompt itself is still cached for other requests."""
    id_slot: LastTokens = -1
    """The slot to wait for (see /slots); -1: the best slot."""
    t_max_predict_ms: int = 0
    """Maximum milliseconds from a reply's first token to its end; 0 or less: no limit.

    Only ends a reply that contains a line break. finish_reason is then length.
    """
    n_indent: Count = 0
    """Minimum leading spaces or tabs of each line but the first. A line with fewer ends the reply before it.

    finish_reason is then length.
    """
    lora: Annotated[list[AdapterScale], Field(max_length=MAX_ADAPTERS, fail_fast=True)] = Field(
        default_factory=list[AdapterScale]
    )
    """Scales of adapters (see /lora-adapters), equal to those that the server started with.

    An empty list has no effect.
    """
    timings_per_token: bool = False
    """Send the `timings` so far in every chunk with text."""
    return_progress: bool = False
    """Report the evaluation of the prompt, as `prompt_progress`, in chunks before the first text."""

    @property
    def salt(self) -> str:
        return self.cache_salt or ""


class GenerationFields(SharedFields, StructuredFields):
    """Fields of completions. Names are OpenAI's; fields that OpenAI lacks have llama-server's names."""

    stream_options: StreamOptions | None = None
    max_tokens: Most | None = None
    """Maximum tokens of the reply. Absent or -1: the value of --predict, else until the context ends."""
    n_predict: Annotated[int, Field(ge=-1)] | None = None
    """llama-server's name for max_tokens. 0: evaluate the prompt and generate one token."""
    stop: Stop | None = None
    """The reply ends before the first of these strings."""
    n: Choices = 1
    """Number of replies. The first reply is the one that n = 1 gives.

    The other replies have seeds derived from the request's seed.
    """
    best_of: Choices | None = None
    """Number of replies to generate; the n with the largest mean logprob per token are returned, best first.

    By default n. A larger number cannot be streamed.
    """
    n_probs: TopLogprobs | None = None
    """llama-server's field: above 0, return logprobs with this number of top_logprobs."""
    return_tokens: bool = False
    """Return token ids beside the text."""
    return_sources: bool = False
    """Return in `sources` which drafter guessed each token of the content."""
    post_sampling_probs: bool = False
    """Return, instead of logprobs, the probabilities after all samplers, from which tokens were drawn.

    Their names are `prob` and `top_probs`. Tokens with probability 0 are not listed. Not with mirostat.
    """
    context_shift: bool | None = None
    """Continue a reply that reaches the context's end: drop half of the tokens after the first n_keep.

    By default the value of --context-shift. Without max_tokens, only a stop string or token ends such a
    reply. The prompt itself must fit the context.
    """
    n_beams: Annotated[int, Field(ge=0, le=MAX_BEAMS)] = 1
    """Number of beams; 2 or more: find the reply with the largest mean logprob per token by beam search.

    logit_bias, ignore_eos, min_tokens and grammar have effect; temperature, seed, filters and drafts have
    none. Text is streamed once all beams agree on it. Not with n or best_of above 1, context_shift,
    penalties, dry, xtc or mirostat. A server with few sequences refuses many beams.
    """

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
        """True if the prompt may contain an earlier reply of this server."""
        return True

    @property
    def reports_prompt(self) -> bool:
        """True if logprobs of the prompt are returned."""
        return False

    @property
    def reports_reply(self) -> bool:
        """True if tokens of the reply are returned. If False, the engine still draws one token."""
        return True

    @property
    def n_generated(self) -> int:
        """Return how many replies are generated per prompt, of which n are returned."""
        return self.best_of or self.n

    @property
    def n_logprobs(self) -> int | None:
        """Return the number of likeliest tokens reported beside each token; None: no logprobs."""
        return self.n_probs or None

    @property
    def max_new_tokens(self) -> int | None:
        """Return the maximum tokens of a reply; None: the server's limit, or the context's end.

        0 becomes 1, as in llama-server, so that the prompt is evaluated.
        """
        given = self.max_tokens if self.max_tokens is not None else self.n_predict
        return None if given is None or given < 0 else max(1, given)

    @property
    def with_usage(self) -> bool:
        """True if a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def contradiction(self) -> tuple[str, str] | None:
        if self.max_tokens is not None and self.n_predict not in (None, self.max_tokens):
            return "n_predict", f"means the same as max_tokens, which is {self.max_tokens}"
        if self.repeat_penalty is not None and self.repetition_penalty not in (None, self.repeat_penalty):
            return "repetition_penalty", f"means the same as repeat_penalty, which is {self.repeat_penalty}"
        if self.post_sampling_probs and self.mirostat:
            return "post_sampling_probs", "mirostat has no probabilities to return"
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
