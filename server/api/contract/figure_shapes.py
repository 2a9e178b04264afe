"""Figures about a text: tokens, their probabilities, costs and times."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypeAliasType, TypedDict

from server.api.contract.quantities import Amount, Byte, Fraction, Logprob, Natural, Positive

Tokens = TypeAliasType("Tokens", list[Natural])
"""Ids of the text's tokens, including markers of thoughts and calls. Only with return_tokens."""


Bytes = TypeAliasType("Bytes", Annotated[list[Byte], Field(min_length=1)] | None)
"""The bytes that the token adds to the text, perhaps part of a character; null if it adds nothing."""


class SourceOfText(TypedDict):
    text: str
    """The token's text. A character that two tokens share belongs to the first token."""
    source: str | None


Sources = TypeAliasType("Sources", list[SourceOfText])
"""Each token of the content with the name of the drafter that guessed it, null if it was not guessed. Only
with return_sources."""


class PromptTokens(TypedDict):
    cached_tokens: Natural


class CompletionTokens(TypedDict):
    reasoning_tokens: Natural
    accepted_prediction_tokens: Natural
    rejected_prediction_tokens: Natural


class Usage(TypedDict):
    prompt_tokens: Positive
    completion_tokens: Natural
    total_tokens: Positive
    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens


class Timings(TypedDict):
    """Timings under llama-server's names. prompt_n prompt tokens were evaluated, cache_n were reused."""

    cache_n: Natural
    prompt_n: Natural
    prompt_ms: Amount
    prompt_per_token_ms: Amount
    prompt_per_second: Amount
    predicted_n: Natural
    predicted_ms: Amount
    """Milliseconds from the first token to the last."""
    predicted_per_token_ms: Amount
    predicted_per_second: Amount
    draft_n: Natural
    draft_n_accepted: Natural
    undrafted_per_second: NotRequired[Amount]
    """An estimate of predicted_per_second without drafts, from the measured times of decodes. Only in replies
    with drafts."""


class DrafterMetrics(TypedDict):
    num_draft_tokens: Natural
    num_accepted_draft_tokens: Natural
    draft_acceptance_rate: Fraction


class SpeculationMetrics(TypedDict):
    """Metrics of drafts under vLLM's names, in total and per drafter."""

    num_drafts: Natural
    """Steps with drafts."""
    num_draft_tokens: Natural
    num_accepted_draft_tokens: Natural
    draft_acceptance_rate: Fraction
    mean_acceptance_length: Annotated[float, Field(ge=1)]
    """Mean tokens of a step with drafts, including the model's own token."""
    acceptance_histogram: list[Natural]
    """Element i: number of steps in which i drafted tokens were accepted."""
    drafters: dict[str, DrafterMetrics]


class Metrics(TypedDict):
    truncated: bool
    """true: a part of the context was dropped to continue the reply."""
    speculative_decoding: SpeculationMetrics
    """Metrics of drafts under vLLM's names, in total and per drafter."""


class ProgressShape(TypedDict):
    total: Positive
    """Tokens of the prompt."""
    cache: Natural
    """Tokens of the prompt that were cached."""
    processed: Natural
    """Tokens of the prompt in the KV cache at this moment."""
    time_ms: Amount


class TopProb(TypedDict):
    id: Natural
    token: str
    prob: Fraction
    bytes: Bytes


class TopLogprob(TypedDict):
    id: Natural
    token: str
    logprob: Logprob
    bytes: Bytes


_EITHER: dict[str, Any] = {
    "oneOf": [{"required": ["logprob", "top_logprobs"]}, {"required": ["prob", "top_probs"]}]
}


@with_config(ConfigDict(json_schema_extra=_EITHER))
class TokenLogprob(TypedDict):
    id: Natural
    prob: NotRequired[Fraction]
    top_probs: NotRequired[Annotated[list[TopProb], Field(max_length=20)]]
    token: str
    logprob: NotRequired[Logprob]
    bytes: Bytes
    top_logprobs: NotRequired[Annotated[list[TopLogprob], Field(max_length=20)]]


class ContentLogprobs(TypedDict):
    refusal: None
    content: list[TokenLogprob]


Logprobs = TypeAliasType("Logprobs", ContentLogprobs | None)
"""Logprobs of the content's tokens, drafted or not, as the model gives them before any sampler. Tokens of
thoughts, of tool calls, and of a stop token or string are not listed. Null unless logprobs or n_probs are
requested."""


class LegacyLogprobLists(TypedDict):
    tokens: list[str]
    token_logprobs: list[Logprob | None]
    top_logprobs: list[Annotated[dict[str, Logprob], Field(min_length=1)] | None]
    """For each token: the likeliest tokens, and always the token itself."""
    text_offset: list[Natural]
    """For each token: the index of the character in which it begins."""


LegacyLogprobsShape = TypeAliasType("LegacyLogprobsShape", LegacyLogprobLists | None)
"""Logprobs in the shape of OpenAI's legacy completions: parallel lists. A token that is part of a character
is written as `bytes:\\xf0`. With echo, the prompt's tokens come first; the first of them has no logprob."""


@with_config(ConfigDict(extra="allow"))
class TokenProbability(TypedDict):
    id: Natural
    token: str
    bytes: list[Byte]


Probabilities = TypeAliasType("Probabilities", list[TokenProbability])
"""For each token of the content: logprob and top_logprobs; with post_sampling_probs, prob and top_probs."""
