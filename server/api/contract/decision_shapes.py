"""Answers of decisions, in OpenAI's and in llama-server's format."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from server.api.contract.quantities import Amount, Fraction, Natural


class PredicateAnswer(TypedDict):
    type: Literal["predicate"]
    name: str | None
    probability: Fraction


class ChoiceProbability(TypedDict):
    value: str | bool
    probability: Fraction


class ChoiceAnswer(TypedDict):
    type: Literal["choice"]
    name: str | None
    choice: str | bool
    confidence: Fraction
    probabilities: list[ChoiceProbability]


class ScoreProbability(TypedDict):
    label: str
    value: Natural
    probability: Fraction


class ScoreAnswer(TypedDict):
    type: Literal["score"]
    name: str | None
    score: Amount
    """The mean level, counted from 0."""
    confidence: Fraction
    probabilities: list[ScoreProbability]


@with_config(ConfigDict(extra="allow"))
class DecisionUsage(TypedDict):
    input_tokens: Natural
    input_tokens_details: dict[str, Any]
    output_tokens: Natural
    output_tokens_details: dict[str, Any]
    total_tokens: Natural


class DecisionShape(TypedDict):
    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: DecisionUsage


@with_config(ConfigDict(extra="allow"))
class StateAnswer(TypedDict):
    type: Literal["choice", "score", "noul"]
    choice: NotRequired[str]
    score: NotRequired[float]
    noul: NotRequired[Fraction]
    legend: NotRequired[dict[str, Any]]
    probabilities: NotRequired[dict[str, float]]
    confidence: NotRequired[Fraction]


@with_config(ConfigDict(extra="allow"))
class StateUsage(TypedDict):
    input_tokens: Natural
    output_tokens: Natural


class StateDecision(TypedDict):
    model: str
    answers: dict[str, StateAnswer]
    usage: StateUsage
