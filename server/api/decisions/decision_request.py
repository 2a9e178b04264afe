"""The body of a request to OpenAI's decisions."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag

from server.api.body import Body, type_of
from server.api.decisions.questions import MOST_OPTIONS, Option, Question
from server.api.generation_fields import MAX_SALT
from server.api.responses.response_items import Item
from server.grammar.json_schema import MAX_DEPTH, depth

MOST_QUESTIONS = 400
"""Maximum questions of a request, as in OpenAI's API."""
MOST_LEVELS = MOST_OPTIONS


def _refuse_deep_nesting(data: Any) -> Any:
    if depth(data) > MAX_DEPTH:
        raise ValueError(f"must not be nested more than {MAX_DEPTH} levels deep")
    return data


class TextInstruction(Body):
    type: Literal["input_text"]
    text: str


class JsonInstruction(Body):
    type: Literal["input_json"]
    data: Annotated[dict[str, Any] | list[Any], AfterValidator(_refuse_deep_nesting)]
    """Nested at most 120 levels deep."""

    @property
    def text(self) -> str:
        """Return the data as JSON text."""
        return json.dumps(self.data, ensure_ascii=False)


Instruction: TypeAlias = Annotated[TextInstruction | JsonInstruction, Field(discriminator="type")]
Instructions: TypeAlias = str | Annotated[list[Instruction], Field(min_length=1, fail_fast=True)]


class AnyQuestion(Body):
    """Fields of every question."""

    instructions: Instructions
    name: str | None = None

    @property
    def said(self) -> str:
        """Return the instructions as text."""
        given = self.instructions
        return given if isinstance(given, str) else "\n".join(part.text for part in given)


class PredicateQuestion(AnyQuestion):
    """A question that asks how likely it is that a statement is true."""

    type: Literal["predicate"]

    @property
    def asked(self) -> Question:
        """Return the question for the model."""
        return Question(self.said)


class OfferedChoice(Body):
    value: str | bool
    """The answer's value for this option; each option has a different value."""
    description: str | None = None


def _refuse_repeats(choices: list[OfferedChoice]) -> list[OfferedChoice]:
    if len({(type(choice.value), choice.value) for choice in choices}) < len(choices):
        raise ValueError("each choice must have a different value")
    return choices


class ChoiceQuestion(AnyQuestion):
    """A question that asks which of several options is right."""

    type: Literal["choice"]
    choices: Annotated[
        list[OfferedChoice],
        Field(min_length=2, max_length=MOST_OPTIONS, fail_fast=True),
        AfterValidator(_refuse_repeats),
    ]

    @property
    def asked(self) -> Question:
        """Return the question for the model."""
        told = [
            Option(json.dumps(one.value) if isinstance(one.value, bool) else one.value, one.description or "")
            for one in self.choices
        ]
        return Question(self.said, told)


class Level(Body):
    label: str
    description: str | None = None


class ScoreQuestion(AnyQuestion):
    """A question that asks which level of a scale is right."""

    type: Literal["score"]
    levels: Annotated[list[Level], Field(min_length=2, max_length=MOST_LEVELS, fail_fast=True)]
    """The levels of the scale, the lowest first."""

    @property
    def asked(self) -> Question:
        """Return the question for the model."""
        told = [Option(level.label, level.description or "") for level in self.levels]
        return Question(self.said, told, ordered=True)


def _tag_of(question: Any) -> str:
    return {"choice": "a choice", "score": "a score"}.get(str(type_of(question)), "a predicate")


DecisionQuestion: TypeAlias = Annotated[
    Annotated[PredicateQuestion, Tag("a predicate")]
    | Annotated[ChoiceQuestion, Tag("a choice")]
    | Annotated[ScoreQuestion, Tag("a score")],
    Discriminator(_tag_of),
]


class DecisionRequest(Body):
    """Body of POST /v1/decisions."""

    input: str | Annotated[list[Item], Field(min_length=1, fail_fast=True)]
    model: str | None = None
    """The served model's id, or "default", or absent."""
    questions: Annotated[
        list[DecisionQuestion], Field(min_length=1, max_length=MOST_QUESTIONS, fail_fast=True)
    ]
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None
