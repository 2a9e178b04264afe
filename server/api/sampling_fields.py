"""Sampling fields of a request, and their conversion to SamplingParams."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from reprlib import repr as brief
from typing import Annotated, Any, cast

from pydantic import Field, WithJsonSchema, field_validator

from server.api.body import Body, Count, Finite, LastTokens, NotNegative, Share, at_most
from server.errors import FieldError
from server.llama.backend import Vocabulary
from server.sampling.candidates import TINY
from server.sampling.params import KNOWN, SamplingParams
from server.text.breakers import breaker_tokens

BREAKERS = ("\n", ":", '"', "*")
"""llama.cpp's default of dry_sequence_breakers."""

Breaker = Annotated[str, Field(min_length=1, max_length=40)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
RepeatPenalty = Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)]
"""A penalty that divides logits; within these limits the logits stay finite."""

MAX_STOP_TOKENS = 1024
"""Maximum stop tokens, equal to MAX_BIASES."""
MAX_BIASES = 1024
"""Maximum entries of logit_bias, as in vLLM."""
MAX_INT32 = (1 << 31) - 1
"""Largest top_k: the wire format has 32 bits for it."""
MOST_DIGITS = 19
"""Maximum digits of a token id: all numbers of 19 digits fit 64 bits."""
SEED: dict[str, Any] = {"minimum": -(1 << 63), "maximum": (1 << 64) - 1}
_BIAS = {"anyOf": [{"type": "number"}, {"const": False}]}
_PAIR: dict[str, Any] = {
    "prefixItems": [{"type": ["integer", "string"]}, _BIAS],
    "items": False,
    "minItems": 2,
}
BIASES: dict[str, Any] = {
    "anyOf": [
        {"type": "object", "additionalProperties": _BIAS, "maxProperties": MAX_BIASES},
        {"type": "array", "items": {"type": "array", **_PAIR}, "maxItems": MAX_BIASES},
    ]
}
"""JSON schema of logit_bias for openapi.yaml; validators check the same forms."""
VAST = 1e6
"""Values are limited to this, since larger ones have no further effect on logits."""

_OTHER_NAMES = {
    "top-k": "top_k",
    "top-p": "top_p",
    "nucleus": "top_p",
    "min-p": "min_p",
    "typ-p": "typ_p",
    "typ": "typ_p",
    "typical": "typ_p",
    "typical_p": "typ_p",
    "typical-p": "typ_p",
    "top-n-sigma": "top_n_sigma",
    "temp": "temperature",
}

_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
}
"""llama-server's letters for samplers."""

_wrong = partial(FieldError, "logit_bias")


class SamplingFields(Body):
    """Sampling parameters, with OpenAI's names and meanings, else llama-server's or vLLM's.

    An absent field has the server's default: all samplers except temperature, top_k, top_p and min_p are off.
    """

    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    """Applied after the other samplers, as in llama.cpp; 0: the likeliest token. By default --temp (0.8)."""
    top_k: int | None = None
    """0 or less: off. By default --top-k (40)."""
    top_p: Share | None = None
    """By default --top-p (0.95)."""
    min_p: Share | None = None
    """By default --min-p (0.05)."""
    seed: Annotated[int | None, Field(json_schema_extra=SEED)] = None
    """64 bits; negative numbers are taken modulo 2^64. -1 or absent: a random seed."""
    typical_p: Share | None = None
    """1: off."""
    top_n_sigma: Finite | None = None
    """0 or less: off."""
    dynatemp_range: NotNegative | None = None
    dynatemp_exponent: NotNegative | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    repeat_penalty: RepeatPenalty | None = None
    """1: none."""
    repeat_last_n: LastTokens | None = None
    """Number of last tokens that the three penalties take into account; 0: none, -1: all."""
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    dry_multiplier: NotNegative | None = None
    """0: off."""
    dry_base: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: LastTokens | None = None
    dry_sequence_breakers: Annotated[list[Breaker], Field(max_length=32, fail_fast=True)] | None = None
    """Texts that a repetition may not cross; by default line break, colon, quotation mark and asterisk."""
    mirostat: Annotated[int, Field(ge=0, le=2)] | None = None
    """0: off."""
    mirostat_tau: NotNegative | None = None
    mirostat_eta: NotNegative | None = None
    logit_bias: Annotated[dict[str, Any] | list[Any], at_most(MAX_BIASES), WithJsonSchema(BIASES)] | None = (
        None
    )
    """Numbers added to the logits of tokens: an object from token ids to numbers, or a list of pairs.

    A text instead of an id stands for each of its tokens; false instead of a number bans the token.
    Biases of one token add up.
    """
    ignore_eos: bool = False
    """Ban every token that ends a reply."""
    min_tokens: Count | None = None
    """Minimum tokens before a token may end the reply. Stop strings may end it earlier."""
    repetition_penalty: RepeatPenalty | None = None
    """vLLM's name of `repeat_penalty`. Without `repeat_last_n` it covers all tokens, the prompt's too."""
    stop_token_ids: Annotated[list[Count], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] | None = None
    """vLLM's field: tokens that end the reply after `min_tokens`, and are not part of it."""
    samplers: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    """The samplers to run, in this order, as a list or separated by semicolons. Other samplers do not run.

    Names are penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature and infill. A text of
    llama-server's letters is also accepted: edskypmxti, in the order of these names. Mirostat replaces all.
    """

    @field_validator("seed")
    @classmethod
    def _seed_has_64_bits(cls, seed: int | None) -> int | None:
        if seed is not None and not -(1 << 63) <= seed < 1 << 64:
            raise ValueError("must be an integer of 64 bits")
        return seed

    @field_validator("logit_bias")
    @classmethod
    def _biases_are_pairs(cls, given: dict[str, Any] | list[Any] | None) -> dict[str, Any] | list[Any] | None:
        for what, value in _bias_pairs(given or {}):
            if isinstance(what, bool) or not isinstance(what, str | int):
                raise ValueError(f"{brief(what)} is neither a token id nor a text")
            _bias_value(what, value)
        return given

    @field_validator("samplers")
    @classmethod
    def _samplers_are_known(cls, given: str | list[str] | None) -> list[str] | None:
        if given is None:
            return None
        names = [part for part in given.split(";") if part] if isinstance(given, str) else given
        names = [_OTHER_NAMES.get(name, name) for name in names]
        if isinstance(given, str) and given not in KNOWN and set(given) <= set(_LETTERS):
            names = [_LETTERS[letter] for letter in given]
        for i, name in enumerate(names):
            if name not in KNOWN:
                raise ValueError(f"no sampler is called {name!r}: there are {', '.join(KNOWN)}")
            if name in names[:i]:
                raise ValueError(f"{name} is listed twice")
        return names


def not_for_beams(fields: SamplingFields) -> str | None:
    """Return the name of the first field that a beam search must refuse, None if there is none.

    A beam search ignores temperature and filters instead of refusing them.
    """
    asked = {
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "repeat_penalty": (fields.repeat_penalty or 1.0) - 1.0,
        "repetition_penalty": (fields.repetition_penalty or 1.0) - 1.0,
        "dry_multiplier": fields.dry_multiplier,
        "xtc_probability": fields.xtc_probability,
        "mirostat": fields.mirostat,
    }
    return next((name for name, value in asked.items() if value), None)


# fields with the same name and meaning in SamplingParams
_PLAIN = tuple(
    name
    for name in SamplingFields.model_fields
    if name not in ("seed", "top_k", "dry_sequence_breakers", "logit_bias", "ignore_eos", "samplers")
    and name not in ("repetition_penalty", "stop_token_ids")
)


def sampling_params(
    fields: SamplingFields, defaults: SamplingParams, vocabulary: Vocabulary
) -> SamplingParams:
    """Return the sampling parameters: the defaults, overridden by the given fields.

    Without a seed, or with seed -1, a random seed is drawn, as in llama.cpp.

    Raises:
        InvalidRequestError: A field names a token that the vocabulary lacks.
    """
    said = ((name, getattr(fields, name)) for name in _PLAIN)
    given: dict[str, Any] = {name: _limit_value(name, value) for name, value in said if value is not None}
    if fields.top_k is not None:
        given["top_k"] = min(max(fields.top_k, 0), MAX_INT32)  # llama.cpp and vLLM: below 0 is off
    if fields.repetition_penalty is not None:
        given["repeat_penalty"] = fields.repetition_penalty
        given.setdefault("repeat_last_n", -1)
    if fields.samplers is not None:
        given["samplers"] = tuple(fields.samplers)
        given["pieces"] = vocabulary if "infill" in fields.samplers else None
    if fields.dry_multiplier:
        breakers = BREAKERS if fields.dry_sequence_breakers is None else fields.dry_sequence_breakers
        given["dry_sequence_breakers"] = breaker_tokens(vocabulary, tuple(breakers))
    if fields.min_tokens:
        given["banned_first"] = vocabulary.eog | stop_tokens(fields, vocabulary)
    if fields.logit_bias or fields.ignore_eos:
        banned = vocabulary.eog if fields.ignore_eos else ()
        given["logit_bias"] = _summed_biases(fields.logit_bias or {}, banned, vocabulary)
    random = fields.seed is None or fields.seed == -1
    seed = secrets.randbits(64) if random else int(fields.seed or 0) % (1 << 64)
    return replace(defaults, seed=seed, **given)


def stop_tokens(fields: SamplingFields, vocabulary: Vocabulary) -> frozenset[int]:
    """Return the ids of the tokens that stop_token_ids names.

    Raises:
        FieldError: The vocabulary has no such token.
    """
    for token in fields.stop_token_ids or ():
        if token >= vocabulary.size:
            raise FieldError(
                "stop_token_ids", f"there is no token {token}: the vocabulary has {vocabulary.size}"
            )
    return frozenset(fields.stop_token_ids or ())


def _summed_biases(
    given: dict[str, Any] | list[Any], banned: Iterable[int], vocabulary: Vocabulary
) -> tuple[tuple[int, float], ...]:
    """Return pairs of token id and bias, sorted by id. Biases of one token add up; `banned` tokens get -inf.

    OpenAI's format is an object from ids to numbers. llama.cpp also has a list of pairs, false instead of a
    number to ban a token, and a text instead of an id for all tokens of the text.
    """
    biases: dict[int, float] = {}
    for what, value in _bias_pairs(given):
        bias = _bias_value(what, value)
        for token in _tokens_of_key(what, vocabulary):
            biases[token] = biases.get(token, 0.0) + bias
    biases.update(dict.fromkeys(banned, -math.inf))
    return tuple(sorted((token, _clip_bias(bias)) for token, bias in biases.items()))


def _limit_value(name: str, value: Any) -> Any:
    """Limit a value so that no arithmetic overflows; a tiny temperature becomes 0."""
    if not isinstance(value, float):
        return value
    return 0.0 if name in ("temperature", "dynatemp_range") and value < TINY else min(value, VAST)


def _clip_bias(bias: float) -> float:
    return bias if bias == -math.inf else max(-VAST, min(VAST, bias))


def _bias_pairs(given: dict[str, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    """Return pairs of a token (id or text) and a bias. Iterating raises ValueError if one is no pair."""
    return given.items() if isinstance(given, dict) else map(_as_pair, given)


def _as_pair(item: Any) -> tuple[Any, Any]:
    pair = cast(list[Any], item) if isinstance(item, list) else []
    if len(pair) != 2:
        raise ValueError(
            f"{brief(cast(object, item))} is not a pair of a token id or text and a number or false"
        )
    return pair[0], pair[1]


def _bias_value(what: Any, value: Any) -> float:
    """Return the bias `value` of the token `what` as a number: false is -inf. Raises ValueError."""
    if value is False:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"the bias of {brief(what)} must be a number or false")
    return float(value)


def _tokens_of_key(what: Any, vocabulary: Vocabulary) -> list[int]:
    if isinstance(what, str) and not what.isdecimal():
        return vocabulary.tokenize(what, special=False)
    if isinstance(what, bool) or not isinstance(what, str | int):
        raise _wrong(f"{brief(what)} is neither a token id nor a text")
    if isinstance(what, str) and len(what) > MOST_DIGITS:  # Python refuses numbers of thousands of digits
        raise _wrong(f"there is no token {brief(what)}: the vocabulary has {vocabulary.size}")
    token = int(what)
    if not 0 <= token < vocabulary.size:
        raise _wrong(f"there is no token {token}: the vocabulary has {vocabulary.size}")
    return [token]
